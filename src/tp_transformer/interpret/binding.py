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
from tp_transformer.interpret.analyses import BindingOptions, layer_index
from tp_transformer.interpret.core.chart import ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.record import Floats, record, untrained_models
from tp_transformer.interpret.core.result import Context, Result, Values, in_words, ratio_interval
from tp_transformer.interpret.core.sample import (
    LETTERS,
    NestedFraction,
    Sample,
    nested_sample,
    read_fractions,
)
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import CONFIDENCE, FEWEST, Interval, wilson

A, B, C, D, E = range(5)  # the cells of the simplified network
# Pairs of a cell and the cell that it attends to, for (a/b)/(c/d) and (a/d)/(c/b).
STRUCTURES = (((A, B), (C, D)), ((A, D), (C, B)))
# The last is TP-attention in which a and c have equal roles.
ATTENTIONS = ("standard", "tp", "equal roles")
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
        return f"{self.value:.2f} times (95% {in_words(self.interval, '.2f')})"


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

    @property
    def initial_range(self) -> str:
        """The ratios of untrained models in words."""
        return in_words((min(self.initial_ratios), max(self.initial_ratios)), ".2f") + " times"

    def summary(self) -> list[str]:
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
                f"untrained models, {self.initial_range}. The ratio is {self.verdict}."
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
        exchanges = {exchange.letters: exchange for exchange in self.exchanges}
        letters = [pair for pairs in KINDS.values() for pair in pairs]
        n = self.exchanges[0].n_answered  # before the exchange, so the same for all
        marks = [
            Marks(
                kind,
                look("o", colour),
                [exchanges[x].at_operator if x in pairs else None for x in letters],
                [exchanges[x].at_operator_interval if x in pairs else None for x in letters],
            )
            for (kind, pairs), colour in zip(
                KINDS.items(), ("blue", "orange", "green"), strict=True
            )
        ]
        same = {x: f"\n{exchanges[x].n_same / n:.0%} same" if n else "" for x in letters}
        lines = []
        if n:
            lines.append(
                f"Same: the answer is that before the exchange, of {n} answered questions."
            )
        if any(exchange.at_operator_interval for exchange in self.exchanges):
            lines.append("Lines: 95% intervals over questions.")
        if self.ratio is not None and self.initial_ratios:
            lines.append(
                f"Confusable exchanges move the state {self.ratio} as far as the control; in "
                f"untrained models, {self.initial_range}."
            )
        drawn = chart(
            [ChartPanel(rows=[f"{x[0]} ↔ {x[1]}{same[x]}" for x in letters], marks=marks)],
            title="Numbers exchanged in (a/b)/(c/d)",
            axis=f"relative distance of the states at the outer operator, layer {self.layer}",
            caption=" ".join([*lines, self.context.caption]),
        )
        return {"binding": drawn}


def analyse(
    model: Transformer, sample: Sample, options: BindingOptions, seed: int
) -> BindingResult:
    """Measure simplified networks, and exchange the numbers of nested fractions for a model."""
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
    controls = untrained_models(model, seed, INITIAL_DRAWS, "measuring untrained models")
    initial = (_ratio(_all_distances(control, layer, asked, variants)) for control in controls)
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
        at_operator_interval=ratio_interval(at_operator),
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
    value = float(confusable.mean() / control.mean())
    return Ratio(value=value, interval=ratio_interval(confusable, control))
