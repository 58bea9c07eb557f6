"""Structures that attention confuses: the binding problem (section 6.2).

In the simplified network of that section, which has two layers of single-head attention with
residual connections and nothing else, attention follows the structure. In (a/b)/(c/d) cell a
attends to b and c to d, then e to a and c; in (a/d)/(c/b), a attends to d and c to b. With standard
attention, cell e ends in the same state for any weights; with TP-attention it does not, unless the
roles of a and c are equal.

A whole model reads (a/b)/(c/d), and the same with two of the four numbers exchanged. The simplified
network with standard attention confuses two of the six exchanges, a with c and b with d; both
change the value. The control are two exchanges that it does not confuse, a with d and b with c:
they keep the value, and their numbers are on average as far apart, 6 tokens. (The last two exchange
neighbours, which moves the states less even in an untrained model.) In a model with the binding
problem, confusable exchanges move the state at the outer operator less than the control does, and
the answer stays the same. In a model that represents the value, they move it more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import t

from tp_transformer import figures
from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.nested import (
    LETTERS,
    NestedFraction,
    nested_sample,
    read_fractions,
)
from tp_transformer.interpret.core.options import layer_index
from tp_transformer.interpret.core.record import checked_model, record, untrained
from tp_transformer.interpret.core.result import Context, Result, Values
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.core.vectors import Floats
from tp_transformer.interpret.options import BindingOptions
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import CONFIDENCE, FEWEST, Interval, resample, wilson

A, B, C, D, E = range(5)  # the cells of the simplified network
# Pairs of a cell and the cell that it attends to, for (a/b)/(c/d) and (a/d)/(c/b).
STRUCTURES = (((A, B), (C, D)), ((A, D), (C, B)))
ATTENTIONS = {
    "standard": "standard attention",
    "tp": "TP-attention",
    "equal roles": "TP-attention, a and c with equal roles",
}
SIZES = (2, 4, 8, 16, 32, 64, 128)

CONFUSABLE, CONTROL, NEIGHBOURS = ("ac", "bd"), ("ad", "bc"), ("ab", "cd")
KINDS = {"confusable": CONFUSABLE, "control": CONTROL, "neighbours": NEIGHBOURS}
INITIAL_DRAWS = 5  # untrained models
ROUNDING = 1e-5  # relative distances of states below this are rounding errors of float32

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
class SimplifiedNetwork:
    """The maps of two layers; those to values and outputs have no biases, as in the section."""

    values: Floats  # (layer, d_model, d_model)
    outputs: Floats  # (layer, d_model, d_model)
    role: Floats  # (d_model, d_model), of the first layer
    role_bias: Floats  # (d_model)

    @classmethod
    def random(cls, d_model: int, rng: np.random.Generator) -> "SimplifiedNetwork":
        """Initialise weights at random, such that the lengths of vectors change little."""
        maps = rng.standard_normal((5, d_model, d_model)) / np.sqrt(d_model)
        bias = rng.standard_normal(d_model)
        return cls(values=maps[:2], outputs=maps[2:4], role=maps[4], role_bias=bias)

    def read(
        self, states: Floats, structure: Sequence[tuple[int, int]], attention: str
    ) -> tuple[Floats, Floats]:
        """Return the cell e before and after the second layer (equations 9 to 11).

        As in the section, only the first layer binds: in the second a single cell attends, and its
        role would be the same for both structures.
        """
        first, second = np.zeros((2, 5, 5))
        for subject, attended in structure:
            first[subject, attended] = 1
        second[E, [A, C]] = 0.5
        roles = np.ones_like(states)
        if attention != "standard":
            roles = states @ self.role.T + self.role_bias
        if attention == "equal roles":
            roles[C] = roles[A]
        states = states + (first @ states @ self.values[0].T * roles) @ self.outputs[0].T
        after = states + second @ states @ self.values[1].T @ self.outputs[1].T
        return states[E], after[E]

    def confusion(self, states: Floats, attention: str) -> float:
        """Return the distance of e between the structures, relative to the attention's update."""
        (before, first), (_, second) = (
            self.read(states, structure, attention) for structure in STRUCTURES
        )
        return float(np.linalg.norm(first - second) / np.linalg.norm(first - before))


@dataclass(frozen=True, kw_only=True)
class Simplified:
    """The relative distance of the two structures: (size, draw) for each kind of attention."""

    sizes: tuple[int, ...]
    distances: Mapping[str, Floats]

    def values(self) -> Values:
        """Return the minimum, the median and the maximum distance for each size."""
        return {
            name: [
                {
                    "d_model": size,
                    "least": draws.min(),
                    "median": np.median(draws),
                    "greatest": draws.max(),
                    "draws": len(draws),
                }
                for size, draws in zip(self.sizes, distances, strict=True)
            ]
            for name, distances in self.distances.items()
        }


def simplified(sizes: Sequence[int] = SIZES, *, draws: int = 50, seed: int = 0) -> Simplified:
    """Measure the distance of the two structures in many random networks of each size."""
    if draws < 1 or not sizes or min(sizes) < 1:
        raise SettingsError("simplified networks need sizes of at least 1 and at least 1 draw")
    rng = np.random.default_rng(seed)
    distances = {name: np.zeros((len(sizes), draws)) for name in ATTENTIONS}
    for row, size in enumerate(track("measuring simplified networks", sizes)):
        for column in range(draws):
            network = SimplifiedNetwork.random(size, rng)
            states = rng.standard_normal((5, size))
            for name, table in distances.items():
                table[row, column] = network.confusion(states, name)
    return Simplified(sizes=tuple(sizes), distances=distances)


@dataclass(frozen=True, kw_only=True)
class NumberExchange:
    """The effect of exchanging two numbers of (a/b)/(c/d)."""

    letters: str  # the two numbers
    at_operator: float  # distance of the states at the outer operator, relative to their length
    at_operator_interval: Interval | None  # 95%, over questions; None for too few questions
    elsewhere: float  # mean relative distance at the positions that hold the same token in both
    n_answered: int  # questions that are answered correctly before the exchange
    n_right: int  # of these, questions that are answered correctly after it
    n_same: int  # of these, questions with the same answer: a confusion, if the value changes
    same_interval: Interval | None  # 95%, of the share (Wilson); None if no question is answered


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
            f"{largest:.1e} with standard attention and at least {smallest:.1e} with TP-attention."
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
        confusable = [exchange for exchange in self.exchanges if exchange.letters in CONFUSABLE]
        n = sum(exchange.n_answered for exchange in confusable)
        if not n:
            return [*lines, "The model answers none of the questions, so its answers show nothing."]
        return [
            *lines,
            f"Answers: after {n} confusable exchanges in questions that it had answered correctly, "
            "the model repeats the old answer "
            f"{sum(exchange.n_same for exchange in confusable)} times and gives the right one "
            f"{sum(exchange.n_right for exchange in confusable)} times.",
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
            "simplified": self.simplified,
            "exchanges": self.exchanges,
            "ratio_to_control": self.ratio,
            "initial_ratios_to_control": self.initial_ratios,
            "kinds": KINDS,
        }

    def plot(self) -> "dict[str, figures.Figure]":
        """Plot the simplified network above the model."""
        with figures.blank(figures.COLUMN, 1.0) as drawn:
            upper, lower = drawn.subplots(2, 1)
            _draw_simplified(upper, self.simplified)
            _draw_exchanges(lower, self)
            lines = []
            if any(exchange.at_operator_interval for exchange in self.exchanges):
                lines.append("Lines on bars: 95% intervals over questions.")
            if self.ratio is not None and self.initial_ratios:
                low, high = min(self.initial_ratios), max(self.initial_ratios)
                lines.append(
                    f"Confusable exchanges move the state {self.ratio} as far as the control; in "
                    f"untrained models, {low:.2f} to {high:.2f} times."
                )
            below = figures.caption(drawn, " ".join([*lines, self.context.caption]))
            drawn.set_figheight(3.9 + below)
            return {"binding": drawn}


def _draw_simplified(axes: "figures.Axes", result: Simplified) -> None:
    smallest = 1e-18  # where a distance of zero is drawn
    marks = zip(ATTENTIONS.items(), ("s", "o", "x"), (1, 0, 2), strict=True)
    for (name, label), mark, colour in marks:
        distances = np.maximum(result.distances[name], smallest)
        middle = np.median(distances, axis=1)
        reach = [middle - distances.min(axis=1), distances.max(axis=1) - middle]
        style: dict[str, Any] = {"marker": mark, "markersize": 3, "linewidth": 1, "capsize": 2}
        axes.errorbar(
            result.sizes, middle, reach, color=figures.COLOURS[colour], label=label, **style
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(result.sizes, [str(size) for size in result.sizes])
    axes.set_yscale("log")
    axes.set_ylim(smallest, 1e3)
    # Not as powers, whose exponents would be too small to read.
    axes.set_yticks([1e-15, 1e-10, 1e-5, 1], ["1e-15", "1e-10", "1e-5", "1"])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("d_model (median, minimum, maximum;\n0 is at the bottom)")
    axes.set_ylabel("relative distance\nof the two structures")
    axes.set_title("Simplified network: (a/b)/(c/d), (a/d)/(c/b)")
    axes.legend(loc="center right")


def _draw_exchanges(axes: "figures.Axes", result: BindingResult) -> None:
    exchange_of = {exchange.letters: exchange for exchange in result.exchanges}
    ticks = []
    for colour, (label, pairs) in enumerate(KINDS.items()):
        places = np.arange(2) + 2.5 * colour
        exchanges = [exchange_of[pair] for pair in pairs]
        heights = [exchange.at_operator for exchange in exchanges]
        limits = [
            exchange.at_operator_interval or (exchange.at_operator,) * 2 for exchange in exchanges
        ]
        axes.bar(
            places,
            heights,
            0.8,
            yerr=np.abs(np.array(limits).T - heights),
            color=figures.COLOURS[colour],
            error_kw={"elinewidth": 0.8, "ecolor": "#303030"},
            label=label,
        )
        for place, exchange, (_, high) in zip(places, exchanges, limits, strict=True):
            if exchange.n_answered:
                text = f"{exchange.n_same / exchange.n_answered:.0%}"
                axes.text(place, high, text, ha="center", va="bottom", fontsize=figures.SMALLEST)
            ticks.append((place, f"{exchange.letters[0]} ↔ {exchange.letters[1]}"))
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.margins(y=0.3)
    axes.grid(axis="x", visible=False)
    n = result.exchanges[0].n_answered  # before the exchange, so the same for all
    counts = f"\n(above: same answer as before,\nof {n} answered)" if n else ""
    axes.set_xlabel(f"numbers exchanged{counts}")
    axes.set_ylabel(f"relative distance at the\nouter operator, layer {result.layer}")
    axes.set_title("This model: (a/b)/(c/d)")
    axes.legend(loc="upper center", ncols=3)


def analyse(model: AnyModel, sample: Sample, options: BindingOptions, seed: int) -> BindingResult:
    """Measure simplified networks, and exchange the numbers of nested fractions for a model."""
    model = checked_model(model, options)
    layer = layer_index(options.layer, model.config.n_layers)
    asked = read_fractions(sample)
    pairs = ["".join(letters) for letters in combinations(LETTERS, 2)]
    variants = {pair: [fraction.exchanged(pair) for fraction in asked] for pair in pairs}
    distances = _all_distances(model, layer, asked, variants)
    answers = np.array(model.solve(sample.questions))
    exchanges = [
        _exchange(pair, distances[pair], asked, answers, after, model)
        for pair, after in track("asking with numbers exchanged", variants.items())
    ]
    initial = (
        _ratio(_all_distances(untrained(model, seed + draw), layer, asked, variants))
        for draw in track("measuring untrained models", range(INITIAL_DRAWS))
    )
    return BindingResult(
        context=Context.of(model, sample, seed),
        layer=layer,
        simplified=simplified(draws=options.draws, seed=seed),
        exchanges=tuple(exchanges),
        ratio=_ratio(distances),
        initial_ratios=tuple(ratio.value for ratio in initial if ratio is not None),
    )


def _all_distances(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
) -> dict[str, Floats]:
    """Return how far each exchange moves the states: (question, at the operator and elsewhere)."""
    name = f"encoder.{layer}.output"

    def states(fractions: Sequence[NestedFraction]) -> list[Floats]:
        """Return the output of the layer for each question: (position, d_model)."""
        pieces = record(model, nested_sample(fractions, "nested fractions"), [name])[name]
        return [piece.astype(np.float64) for piece in pieces]

    before = states(asked)
    return {
        pair: np.array(list(map(_distances, asked, before, states(after))))
        for pair, after in variants.items()
    }


def _distances(asked: NestedFraction, before: Floats, after: Floats) -> tuple[float, float]:
    """Return the relative distance of the states, at the operator and on average elsewhere."""
    length = (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)) / 2
    moved = np.linalg.norm(before - after, axis=1) / length
    is_number = [False, *(character.isdigit() for character in asked.question), False]
    return float(moved[asked.operator]), float(moved[~np.array(is_number)].mean())


def _exchange(
    letters: str,
    distances: Floats,
    before: Sequence[NestedFraction],
    answers_before: np.ndarray[Any, np.dtype[np.str_]],
    after: Sequence[NestedFraction],
    model: Transformer,
) -> NumberExchange:
    answers_after = np.array(model.solve([fraction.question for fraction in after]))
    answered = np.array([fraction.answer for fraction in before]) == answers_before
    right = np.array([fraction.answer for fraction in after]) == answers_after
    same = answers_before == answers_after
    n_answered, n_same = int(answered.sum()), int((same & answered).sum())
    at_operator = distances[:, 0]
    return NumberExchange(
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
    """Return the ratio of the distances at the operator, confusable exchanges to control."""
    confusable, control = (
        np.mean([distances[pair][:, 0] for pair in pairs], axis=0)
        for pairs in (CONFUSABLE, CONTROL)
    )
    if control.mean() < ROUNDING:
        return None
    interval = resample(len(confusable), lambda counts: (counts @ confusable) / (counts @ control))
    return Ratio(value=float(confusable.mean() / control.mean()), interval=interval)
