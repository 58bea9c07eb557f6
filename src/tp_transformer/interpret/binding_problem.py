"""The binding problem made executable: which structures attention confuses (section 6.2).

First the simplified network of that section (see simplified.py): for standard attention the two
structures are the same, for TP-attention they are not.

Then the same question put to a whole model, which has more than one head, feed-forward layers and
positions to tell structures apart: it reads (a/b)/(c/d) and the same with two of its four numbers
exchanged. The simplified network with standard attention confuses two of the six exchanges, a with
c and b with d, and both change the value. The control are two exchanges that it does not confuse,
a with d and b with c: they keep the value, and their numbers stand on average as far from each
other, 6 symbols. (The last two, a with b and c with d, exchange neighbours, which moves the states
less even in a model that was not trained.) A model with the binding problem has states that are
nearer to each other after the confusable exchanges than after the control, a ratio below those of
initial weights, which are about 1; and it gives the same answer to both. A model that represents
the value has a ratio above them. Either is said only if the ratio's interval leaves out both 1 and
where 95% of further draws of initial weights are expected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.errors import SettingsError
from tp_transformer.interpret import outcome
from tp_transformer.interpret.outcome import Context, Values
from tp_transformer.interpret.record import Sample, chosen_layer, fresh, record, transformer_of
from tp_transformer.interpret.simplified import ATTENTIONS, Simplified, simplified
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import FEWEST, Interval, resample, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

LETTERS = "abcd"
CONFUSABLE = ("ac", "bd")
CONTROL = ("ad", "bc")
NEIGHBOURS = ("ab", "cd")
INITIAL_DRAWS = 5
# Where 95% of further draws fall, in standard deviations of five: by t with 4 degrees of freedom.
FURTHER_DRAWS = 2.776 * (1 + 1 / INITIAL_DRAWS) ** 0.5
ROUNDING = 1e-5  # relative distances of states below this are float32's
DIGITS = range(2, 10)
WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")


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
        ]

    def _verdict(self, ratio: Ratio) -> str:
        """What the ratio shows, if its interval leaves out 1 and what initial weights may have."""
        low, high = ratio.interval or (0.0, np.inf)
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
            "layer": self.layer,
            "simplified": self.simplified.to_values(),
            "exchanges": [vars(one) for one in self.exchanges],
            "ratio_to_control": self.ratio and vars(self.ratio),
            "initial_ratios_to_control": self.initial_ratios,
            "kinds": {"confusable": CONFUSABLE, "control": CONTROL, "neighbours": NEIGHBOURS},
            "meaning": self.meaning,
        }


@dataclass(frozen=True, kw_only=True)
class NestedFraction:
    """A question of the form (a/b)/(c/d), in a wording of the dataset."""

    numbers: tuple[int, ...]  # a, b, c, d
    wording: str

    @property
    def question(self) -> str:
        """The text."""
        return self.wording.format("({}/{})/({}/{})".format(*self.numbers))

    @property
    def answer(self) -> str:
        """The value as the dataset writes it."""
        a, b, c, d = self.numbers
        return str(Fraction(a * d, b * c))

    @property
    def operator(self) -> int:
        """The source position of the outer operator; 0 is the start symbol."""
        return 1 + self.question.index(")/(") + 1

    def exchanged(self, letters: str) -> "NestedFraction":
        """The same with two numbers in each other's place."""
        numbers = list(self.numbers)
        one, other = (LETTERS.index(letter) for letter in letters)
        numbers[one], numbers[other] = numbers[other], numbers[one]
        return NestedFraction(numbers=tuple(numbers), wording=self.wording)


def nested_fractions(count: int, seed: int = 0) -> list[NestedFraction]:
    """Different questions of four different digits each.

    All numbers have one digit, so that an exchange moves no other symbol, and digits that differ
    give values that differ.
    """
    every = list(permutations(DIGITS, 4))
    if not 1 <= count <= len(every):
        raise SettingsError(f"there are 1 to {len(every)} nested fractions to ask, not {count}")
    rng = np.random.default_rng(seed)
    return [
        NestedFraction(numbers=every[place], wording=WORDINGS[rng.integers(len(WORDINGS))])
        for place in rng.permutation(len(every))[:count]
    ]


def analyse(
    model: AnyModel, *, layer: int = -1, count: int = 64, draws: int = 50, seed: int = 0
) -> Binding:
    """Draw simplified networks, and exchange the numbers of nested fractions for a model."""
    model = transformer_of(model)
    layer = chosen_layer(model, layer)
    asked = nested_fractions(count, seed)
    letters = ["".join(two) for two in combinations(LETTERS, 2)]
    variants = {two: [one.exchanged(two) for one in asked] for two in letters}
    distances = _all_distances(model, layer, asked, variants)
    said = model.solve([one.question for one in asked])
    exchanges = [
        _exchange(
            two, distances[two], asked, after, said, model.solve([one.question for one in after])
        )
        for two, after in variants.items()
    ]
    return Binding(
        layer=layer,
        sample=_sample(
            asked, f"{count} nested fraction{'s' * (count > 1)} of digits (seed {seed})"
        ),
        simplified=simplified(draws=draws, seed=seed),
        exchanges=tuple(exchanges),
        ratio=_ratio(distances),
        initial_ratios=_initial_ratios(model, layer, asked, variants, seed),
    )


def _initial_ratios(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
    seed: int,
) -> tuple[float, ...]:
    """The ratios of models that have learned nothing: it is weights that make them differ."""
    drawn = (fresh(model, seed + number) for number in range(INITIAL_DRAWS))
    ratios = (_ratio(_all_distances(one, layer, asked, variants)) for one in drawn)
    return tuple(one.value for one in ratios if one is not None)


def _all_distances(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
) -> dict[str, Floats]:
    """How far each exchange moves the states: (question, at the operator and elsewhere)."""
    before = _states(model, layer, asked)
    return {
        two: np.array(
            [
                _distances(*each)
                for each in zip(asked, before, _states(model, layer, after), strict=True)
            ]
        )
        for two, after in variants.items()
    }


def _states(model: Transformer, layer: int, asked: Sequence[NestedFraction]) -> list[Floats]:
    """What the layer makes of each question: (position, d_model)."""
    sample = _sample(asked, "nested fractions")
    name = f"encoder.{layer}.output"
    return [piece.astype(np.float64) for piece in record(model, sample, [name])[name]]


def _sample(asked: Sequence[NestedFraction], origin: str) -> Sample:
    return Sample(
        questions=tuple(one.question for one in asked),
        answers=tuple(one.answer for one in asked),
        origin=origin,
    )


def _distances(asked: NestedFraction, before: Floats, after: Floats) -> tuple[float, float]:
    """How far a state moved, relative to its length: at the operator, and on average elsewhere."""
    length = (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)) / 2
    moved = np.linalg.norm(before - after, axis=1) / length
    is_number = [False, *(symbol.isdigit() for symbol in asked.question), False]
    return float(moved[asked.operator]), float(moved[~np.array(is_number)].mean())


def _exchange(
    letters: str,
    distances: Floats,
    before: Sequence[NestedFraction],
    after: Sequence[NestedFraction],
    said_before: Sequence[str],
    said_after: Sequence[str],
) -> Exchange:
    answered = np.array([one.answer == said for one, said in zip(before, said_before, strict=True)])
    right = np.array([one.answer == said for one, said in zip(after, said_after, strict=True)])
    same = np.array([one == other for one, other in zip(said_before, said_after, strict=True)])
    n_answered, n_same = int(answered.sum()), int((same & answered).sum())
    at_operator = distances[:, 0]
    return Exchange(
        letters=letters,
        at_operator=float(at_operator.mean()),
        at_operator_interval=resample(
            len(distances), lambda counts: counts @ at_operator / len(distances)
        ),
        elsewhere=float(distances[:, 1].mean()),
        n_answered=n_answered,
        n_right=int((right & answered).sum()),
        n_same=n_same,
        same_interval=wilson(n_same, n_answered) if n_answered else None,
    )


def _ratio(distances: Mapping[str, Floats]) -> Ratio | None:
    """The distance at the operator after confusable exchanges as a multiple of the control's."""
    own, control = (
        np.mean([distances[two][:, 0] for two in letters], axis=0)
        for letters in (CONFUSABLE, CONTROL)
    )
    if control.mean() < ROUNDING:
        return None
    interval = resample(len(own), lambda counts: (counts @ own) / (counts @ control))
    return Ratio(value=float(own.mean() / control.mean()), interval=interval)


def save(result: Binding, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the distances.

    The questions asked are the result's own; of the context only model and seed are used.
    """
    context = replace(context, sample=result.sample)
    path = outcome.write(folder, "binding", result.to_values(), context)
    with figures.blank(7.0, 3.1) as drawn:
        left, right = drawn.subplots(1, 2, width_ratios=(1, 1.15))
        _draw_simplified(left, result.simplified)
        _draw_exchanges(right, result)
        figures.caption(drawn, context.caption)
        return [path, *figures.save(drawn, Path(folder), "binding")]


def _draw_simplified(axes: "Axes", found: Simplified) -> None:
    smallest = 1e-18  # where a distance of exactly zero is drawn
    marks = zip(ATTENTIONS.items(), ("s", "o", "x"), (1, 0, 2), strict=True)
    for (name, label), mark, colour in marks:
        distances = np.maximum(found.distances[name], smallest)
        middle = np.median(distances, axis=1)
        reach = [middle - distances.min(axis=1), distances.max(axis=1) - middle]
        style: dict[str, Any] = {"marker": mark, "markersize": 4, "linewidth": 1, "capsize": 2}
        axes.errorbar(
            found.sizes, middle, reach, color=figures.COLOURS[colour], label=label, **style
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.sizes, [str(size) for size in found.sizes])
    axes.set_yscale("log")
    axes.set_ylim(smallest, 1e3)
    axes.set_xlabel("d_model (median, least, greatest; 0 is at the bottom)")
    axes.set_ylabel("relative distance of the two structures")
    axes.set_title("simplified network: (a/b)/(c/d), (a/d)/(c/b)", fontsize=8)
    axes.legend(fontsize=6.5, loc="center right")


def _draw_exchanges(axes: "Axes", result: Binding) -> None:
    kinds = (("confusable", CONFUSABLE), ("control", CONTROL), ("neighbours", NEIGHBOURS))
    found = {one.letters: one for one in result.exchanges}
    ticks = []
    for colour, (label, letters) in enumerate(kinds):
        places = np.arange(2) + 2.5 * colour
        own = [found[two] for two in letters]
        heights = [one.at_operator for one in own]
        limits = [one.at_operator_interval or (one.at_operator,) * 2 for one in own]
        axes.bar(
            places,
            heights,
            0.8,
            yerr=np.abs(np.array(limits).T - heights),
            color=figures.COLOURS[colour],
            error_kw={"elinewidth": 0.8, "ecolor": "#303030"},
            label=label,
        )
        for place, one, (_, high) in zip(places, own, limits, strict=True):
            if one.n_answered:
                text = f"{one.n_same}/{one.n_answered}"
                axes.text(place, high, text, ha="center", va="bottom", fontsize=6.5)
            ticks.append((place, f"{one.letters[0]}↔{one.letters[1]}"))
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.margins(y=0.3)
    axes.grid(axis="x", visible=False)
    is_answered = any(one.n_answered for one in result.exchanges)
    counts = "\n(above: same answer as before, of those answered)" if is_answered else ""
    axes.set_xlabel(f"numbers exchanged{counts}")
    axes.set_ylabel(f"relative distance at the\nouter operator, layer {result.layer}")
    axes.set_title("this model: (a/b)/(c/d)", fontsize=8)
    axes.legend(fontsize=6.5, loc="upper center", ncols=3)
