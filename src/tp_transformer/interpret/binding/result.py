"""The result of the binding analysis: the effect of exchanged numbers on states and answers."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from tp_transformer.foundation.statistics import CONFIDENCE, FEWEST, Interval
from tp_transformer.interpret.binding.simplified import Simplified
from tp_transformer.interpret.core.result import Result, Values

CONFUSABLE = ("ac", "bd")
CONTROL = ("ad", "bc")
NEIGHBOURS = ("ab", "cd")
INITIAL_DRAWS = 5  # untrained models

# What a ratio is, and shows.
LOWER = "below 1 and below those of untrained models: a trace of the binding problem"
HIGHER = (
    "above 1 and above those of untrained models: a trace of the value, which the control keeps"
)
UNCLEAR = (
    "not clearly different from 1 or from those of untrained models, so it shows neither the "
    "binding problem nor a value"
)
TOO_FEW = "not compared with those of untrained models, because there are too few questions"


@dataclass(frozen=True, kw_only=True)
class NumberExchange:
    """The effect of exchanging two numbers of (a/b)/(c/d).

    Attributes:
        letters: the two numbers
        at_operator: distance of the states at the outer operator, relative to their length
        at_operator_interval: 95% interval over resampled questions; None for too few questions
        elsewhere: mean relative distance at the positions that hold the same token in both
        n_answered: questions that are answered correctly before the exchange
        n_right: of these, questions that are answered correctly after it
        n_same: of these, questions that get the same answer after it: a confusion, if the value
            changes
        same_interval: 95% interval of the share (Wilson); None if no question is answered
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
    """A ratio of two distances."""

    value: float
    interval: Interval | None  # 95%, over resampled questions; None for too few questions

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.2f} times (no interval: fewer than {FEWEST} questions)"
        return f"{self.value:.2f} times (95% {self.interval[0]:.2f} to {self.interval[1]:.2f})"


@dataclass(frozen=True, kw_only=True)
class BindingResult(Result):
    """The simplified network, and the effect of exchanged numbers on a model.

    The ratio compares distances at the outer operator after confusable exchanges with those after
    the control; it is None if the control does not move the state.
    """

    layer: int
    simplified: Simplified
    exchanges: tuple[NumberExchange, ...]
    ratio: Ratio | None
    initial_ratios: tuple[float, ...]  # of untrained models

    name = "binding"

    def summary(self) -> list[str]:
        """Return what the simplified network, the states and the answers show."""
        largest = self.simplified.distances["standard"].max()
        smallest = self.simplified.distances["tp"].min()
        lines = [
            "Simplified network: the relative distance of the two structures is at most "
            f"{largest:.1e} with standard attention and at least {smallest:.1e} with TP-attention.",
        ]
        if self.ratio is None or self.verdict is None:
            lines.append("The state of the outer operator does not move with any of the numbers.")
        else:
            lines.append(
                "This model, outer operator: the exchanges that standard attention would confuse "
                f"move the state {self.ratio} as far as the control; in {len(self.initial_ratios)} "
                f"untrained models, {min(self.initial_ratios):.2f} to "
                f"{max(self.initial_ratios):.2f} times. The ratio is {self.verdict}."
            )
        own = [exchange for exchange in self.exchanges if exchange.letters in CONFUSABLE]
        n = sum(exchange.n_answered for exchange in own)
        if not n:
            return [*lines, "The model answers none of the questions, so its answers show nothing."]
        return [
            *lines,
            f"Answers: after {n} confusable exchanges in questions that it had answered correctly, "
            f"the model repeats the old answer {sum(exchange.n_same for exchange in own)} times "
            f"and gives the right one {sum(exchange.n_right for exchange in own)} times.",
        ]

    @property
    def verdict(self) -> str | None:
        """What the ratio is, and shows; None if the numbers do not move the state.

        Its interval must exclude 1 and the interval that is expected to hold 95% of the ratios of
        further untrained models.
        """
        if self.ratio is None or len(self.initial_ratios) < INITIAL_DRAWS:
            return None
        if self.ratio.interval is None:
            return TOO_FEW
        low, high = self.ratio.interval
        n = len(self.initial_ratios)
        quantile = t.ppf((1 + CONFIDENCE) / 2, n - 1) * (1 + 1 / n) ** 0.5
        middle, reach = np.mean(self.initial_ratios), quantile * np.std(self.initial_ratios, ddof=1)
        if high < min(1, middle - reach):
            return LOWER
        if low > max(1, middle + reach):
            return HIGHER
        return UNCLEAR

    def values(self) -> Values:
        """Return the numbers."""
        return {
            "layer": self.layer,
            "verdict": self.verdict,
            "simplified": self.simplified.values(),
            "exchanges": self.exchanges,
            "ratio_to_control": self.ratio,
            "initial_ratios_to_control": self.initial_ratios,
            "kinds": {"confusable": CONFUSABLE, "control": CONTROL, "neighbours": NEIGHBOURS},
        }
