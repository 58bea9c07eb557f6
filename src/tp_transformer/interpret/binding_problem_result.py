"""What exchanged numbers do to a network and to a model, in words and values (section 6.2)."""

from dataclasses import dataclass

import numpy as np

from tp_transformer.interpret.interchange import Interchange
from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.record import Sample
from tp_transformer.interpret.simplified import Simplified
from tp_transformer.scoring.statistics import FEWEST, Interval

CONFUSABLE = ("ac", "bd")
CONTROL = ("ad", "bc")
NEIGHBOURS = ("ab", "cd")
INITIAL_DRAWS = 5
# Where 95% of further draws fall, in standard deviations of five: by t with 4 degrees of freedom.
FURTHER_DRAWS = 2.776 * (1 + 1 / INITIAL_DRAWS) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What exchanging two numbers of (a/b)/(c/d) does to a model.

    Attributes:
        letters: which two
        at_operator: distance of the two states at the outer operator, relative to their length
        at_operator_interval: 95%, questions drawn anew; None where they are too few
        elsewhere: the same, averaged over the positions that hold the same symbol in both
        n_answered: questions answered correctly before the exchange
        n_right: of these, answered correctly after it, too
        n_same: of these, given the same answer after it; a confusion where the value changes
        same_interval: of that share, 95% (Wilson); None where no question was answered
    """

    letters: str
    at_operator: float
    at_operator_interval: Interval | None
    elsewhere: float
    n_answered: int
    n_right: int
    n_same: int
    same_interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A distance as a multiple of another; too few questions have no interval."""

    value: float
    interval: Interval | None  # 95%, questions drawn anew

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.2f} times (no interval: fewer than {FEWEST} questions)"
        return f"{self.value:.2f} times (95% {self.interval[0]:.2f} to {self.interval[1]:.2f})"


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The simplified network, and what a model does with exchanged numbers.

    The ratio compares distances at the outer operator after confusable exchanges with those of the
    control; it is None if the control does not move the state at all.
    """

    layer: int
    sample: Sample  # nested fractions before an exchange
    simplified: Simplified
    exchanges: tuple[Exchange, ...]
    ratio: Ratio | None
    initial_ratios: tuple[float, ...]  # of the same configuration, its weights drawn anew
    interchanges: tuple[Interchange, ...]  # empty without roles
    seed: int

    @property
    def meaning(self) -> list[str]:
        """What the numbers say, and what they cannot."""
        worst = self.simplified.distances["standard"].max()
        least = self.simplified.distances["tp"].min()
        lines = [
            "Simplified network: with standard attention the two structures are at most "
            f"{worst:.1e} apart, relative to what attention adds; with TP-attention at least "
            f"{least:.1e}.",
        ]
        if self.ratio is None or len(self.initial_ratios) < INITIAL_DRAWS:
            lines.append("The outer operator's state does not move with any of the numbers.")
        else:
            lines.append(
                "This model, outer operator: the exchanges that standard attention alone would "
                f"confuse move the state {self.ratio} as far as the control; with initial weights, "
                f"drawn {len(self.initial_ratios)} times, {min(self.initial_ratios):.2f} to "
                f"{max(self.initial_ratios):.2f} times. {self._verdict(self.ratio)}"
            )
        own = [one for one in self.exchanges if one.letters in CONFUSABLE]
        n = sum(one.n_answered for one in own)
        if not n:
            return [*lines, "The model answers none of the questions, so its answers say nothing."]
        return [
            *lines,
            f"Answers: of {n} confusable exchanges in questions that it had answered correctly, "
            f"the model gives the old answer after {sum(one.n_same for one in own)}, and the right "
            f"one after {sum(one.n_right for one in own)}.",
            *(one.meaning for one in self.interchanges),
        ]

    def _verdict(self, ratio: Ratio) -> str:
        """What the ratio shows, if its interval leaves out 1 and what initial weights may have."""
        if ratio.interval is None:
            return "Too few questions to say more."
        low, high = ratio.interval
        middle = np.mean(self.initial_ratios)
        reach = FURTHER_DRAWS * np.std(self.initial_ratios, ddof=1)
        if high < min(1, middle - reach):
            return "That is less: a trace of the binding problem."
        if low > max(1, middle + reach):
            return "That is more: a trace of the value, which the control keeps."
        return "That is not clearly different, so it shows neither the binding problem nor a value."

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "seed": self.seed,
            "layer": self.layer,
            "simplified": self.simplified.to_values(),
            "exchanges": [vars(one) for one in self.exchanges],
            "ratio_to_control": self.ratio and vars(self.ratio),
            "initial_ratios_to_control": self.initial_ratios,
            "interchanges": [one.to_values() for one in self.interchanges],
            "kinds": {"confusable": CONFUSABLE, "control": CONTROL, "neighbours": NEIGHBOURS},
            "meaning": self.meaning,
        }
