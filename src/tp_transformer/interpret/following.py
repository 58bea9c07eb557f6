"""Which heads attend as a relation says: from a second argument to its operator, and so on.

For every position that has the relation, the attention mass on the related positions counts. It is
set against three baselines, means over the same positions:

- even: a head that attends evenly puts the share of the related positions among all there. That is
  also what positions drawn at random would get, on average.
- exchanged: a head that attends to operators, but to any of them, puts as much on the operators of
  other arguments: the mass on what other positions of the same question are related to. Where a
  question has no other, the even baseline stands in.
- by distance: a head that attends to the characters next to it has much on what is near, related or
  not: the mass if the head went by distance alone, and by whether a digit, an operator or something
  else attends.

The margin is what is left of the mass after the largest of them. Even heads with initial weights
have one, as positions and characters alone make them uneven; so a head follows a relation clearly
only if its margin surely exceeds the greatest of any head of such models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.expressions import Expression
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.structure import Pairs, Relation
from tp_transformer.scoring.statistics import FEWEST, Interval

Floats = npt.NDArray[np.float64]

RESAMPLES = 10_000
ERROR = 0.05  # how often an interval misses, for one head or more of all that are ranked
ROUNDING = 1e-9  # no margin
ROUNDS = 20  # of fitting; a thousand change no mass by 0.0001


@dataclass(frozen=True, kw_only=True)
class Following:
    """How well a head follows a relation; means over all positions that have it."""

    layer: int
    head: int
    mass: float
    even: float  # the mass of a head that attends evenly
    exchanged: float  # the mass on what others are related to; even where there are no others
    by_distance: float  # the mass if the head went by distance alone
    baseline: float  # the largest of the three
    margin: float  # of the mass over the baseline, by which heads are ranked
    interval: Interval | None  # of the margin, for all heads together; None of too few questions
    is_clear: bool | None  # whether the margin surely exceeds those of initial weights
    hits: float  # how often the most attended position is a related one


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The heads that follow a relation, best first."""

    relation: str
    n_positions: int  # that have the relation
    n_questions: int
    initial: float  # the greatest margin of heads with initial weights
    heads: tuple[Following, ...]  # empty where no question has the relation

    @property
    def clear(self) -> tuple[Following, ...]:
        """The heads that surely follow it."""
        return tuple(one for one in self.heads if one.is_clear)

    @property
    def best(self) -> Following:
        """The best of those, or the best candidate where there are none."""
        return (self.clear or self.heads)[0]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What the heads of a model attend to in each question, and would by distance alone."""

    expressions: tuple[Expression, ...]
    weights: tuple[Floats, ...]  # (layer, head, query, key)
    by_distance: tuple[Floats, ...]  # alike

    @classmethod
    def of(
        cls,
        weights: Sequence[npt.NDArray[np.floating]],
        expressions: Sequence[Expression | None],
    ) -> "Attention":
        """The attention to those questions that are expressions."""
        found = [
            (own.astype(np.float64), expression)
            for own, expression in zip(weights, expressions, strict=True)
            if expression is not None
        ]
        kept = tuple(own for own, _ in found)
        read = tuple(expression for _, expression in found)
        return cls(
            expressions=read,
            weights=kept,
            by_distance=_by_distance(kept, [symbols(one.question) for one in read]),
        )


def rank(
    name: str, relation: Relation, attention: Attention, *, initial: float, seed: int
) -> Ranking:
    """Rank heads; `initial` is the greatest margin of heads with initial weights."""
    measured = _measure(relation, attention)
    if not measured:
        return Ranking(relation=name, n_positions=0, n_questions=0, initial=initial, heads=())
    heads = sorted(_follow(measured, max(initial, ROUNDING), seed), key=lambda one: -one.margin)
    return Ranking(
        relation=name,
        n_positions=sum(len(one.mass) for one in measured),
        n_questions=len(measured),
        initial=initial,
        heads=tuple(heads),
    )


def greatest_margin(relation: Relation, attention: Attention) -> float:
    """The margin of the head that follows a relation best; 0 where no question has it."""
    measured = _measure(relation, attention)
    if not measured:
        return 0.0
    mass = np.concatenate([one.mass for one in measured]).mean(axis=0)
    baselines = np.concatenate([one.baselines for one in measured]).mean(axis=0)
    return float((mass - baselines.max(axis=0)).max())


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """For each position of a question that has the relation."""

    mass: Floats  # (position, layer, head)
    baselines: Floats  # (position, baseline, layer, head): even, exchanged, by distance
    hits: Floats  # (position, layer, head)

    @classmethod
    def of(cls, weights: Floats, by_distance: Floats, pairs: Pairs) -> "_Measured":
        """Measure the pairs of one question, given its weights (layer, head, query, key)."""
        sets = list(dict.fromkeys(keys for _, keys in pairs))
        chosen = np.zeros((len(sets), weights.shape[-1]))
        for row, keys in enumerate(sets):
            chosen[row, list(keys)] = 1
        own = np.array([sets.index(keys) for _, keys in pairs])
        queries = np.array([query for query, _ in pairs])
        each = np.arange(len(pairs))
        attended = np.moveaxis(weights[:, :, queries], 2, 0)  # (position, layer, head, key)
        on_sets = attended @ chosen.T
        mass = on_sets[each, ..., own]
        even = np.broadcast_to(chosen.mean(axis=-1)[own][:, None, None], mass.shape)
        others = len(sets) - 1
        exchanged = (on_sets.sum(axis=-1) - mass) / others if others else even
        usual = np.moveaxis(by_distance[:, :, queries], 2, 0) @ chosen.T
        most = attended.argmax(axis=-1)
        return cls(
            mass=mass,
            baselines=np.stack([even, exchanged, usual[each, ..., own]], axis=1),
            hits=chosen[own[:, None, None], most],
        )


def _measure(relation: Relation, attention: Attention) -> list[_Measured]:
    """Every question that has the relation, measured."""
    found = zip(attention.expressions, attention.weights, attention.by_distance, strict=True)
    return [
        _Measured.of(weights, by_distance, pairs)
        for expression, weights, by_distance in found
        if (pairs := relation(expression))
    ]


def _follow(measured: Sequence[_Measured], least: float, seed: int) -> list[Following]:
    """Every head, clear if its margin surely exceeds the least that counts."""
    mass, hits = (
        np.concatenate([getattr(one, name) for one in measured]).mean(axis=0)
        for name in ("mass", "hits")
    )
    even, exchanged, by_distance = baselines = np.concatenate(
        [one.baselines for one in measured]
    ).mean(axis=0)
    baseline = baselines.max(axis=0)
    intervals = _intervals(measured, seed) if len(measured) >= FEWEST else None
    found = []
    for at in np.ndindex(mass.shape):
        interval = None if intervals is None else (float(intervals[0][at]), float(intervals[1][at]))
        found.append(
            Following(
                layer=at[0],
                head=at[1],
                mass=float(mass[at]),
                even=float(even[at]),
                exchanged=float(exchanged[at]),
                by_distance=float(by_distance[at]),
                baseline=float(baseline[at]),
                margin=float(mass[at] - baseline[at]),
                interval=interval,
                is_clear=None if interval is None else interval[0] > least,
                hits=float(hits[at]),
            )
        )
    return found


def _intervals(measured: Sequence[_Measured], seed: int) -> Floats:
    """Both ends, for each layer and head, of an interval of the margin: (end, layer, head).

    Questions are drawn anew, and the largest baseline is found anew in each draw. All heads see the
    same draws, which `statistics.resample` would make for each head once more.
    """
    n = len(measured)
    counts = np.array([len(one.mass) for one in measured])
    sums = np.stack([(one.mass[:, None] - one.baselines).sum(axis=0) for one in measured])
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = (drawn @ sums.reshape(n, -1)) / (drawn @ counts)[:, None]
    margins = means.reshape(RESAMPLES, *sums.shape[1:]).min(axis=1)  # (resample, layer, head)
    tail = ERROR / 2 / margins[0].size
    return np.quantile(margins, [tail, 1 - tail], axis=0)


# What a head would attend to by distance alone.


def _kind(character: str) -> str:
    """What attends: a head may go back one from every digit, and from nothing else."""
    if character.isdigit():
        return "digit"
    return "operator" if character in "+-*/" else "other"


def _by_distance(weights: Sequence[Floats], rows: Sequence[str]) -> tuple[Floats, ...]:
    """The weights of heads that go by distance alone, as near to the given ones as can be.

    Each distance has a strength, one for each kind of what attends, and a position shares its
    attention by the strengths of those distances that its question has. All positions count, those
    that have a relation, too: one that nearly all of a kind have at one distance cannot be told
    from a habit. Where a head really follows a relation, this makes the baseline rather too high.
    """
    found = tuple(np.empty_like(own) for own in weights)
    farthest = max((len(row) for row in rows), default=0)
    for kind in ("digit", "operator", "other"):
        places = [
            (number, at, slice(farthest - at, farthest - at + len(row)))
            for number, row in enumerate(rows)
            for at, character in enumerate(row)
            if _kind(character) == kind
        ]
        if not places:
            continue
        there = np.zeros((len(places), 2 * farthest))  # the distances that each position has
        total = np.zeros((2 * farthest, *weights[0].shape[:2]))
        for place, (number, at, distances) in enumerate(places):
            there[place, distances] = 1
            total[distances] += weights[number][:, :, at].transpose(2, 0, 1)
        strength = _strengths(there, total.reshape(2 * farthest, -1)).reshape(total.shape)
        for number, at, distances in places:
            own = strength[distances].transpose(1, 2, 0)
            found[number][:, :, at] = own / own.sum(axis=-1, keepdims=True)
    return found


def _strengths(there: Floats, total: Floats) -> Floats:
    """The likeliest strength of each distance, (distance, head), given its total attention.

    Position by position, a choice among the distances that are there: the model of Luce (1959),
    fitted by the steps of Hunter (2004), each of which makes the likelihood greater. A plain mean
    of attention by distance would go wrong near the ends of questions, where few share all of it.
    """
    strength = total / np.maximum(there.sum(axis=0), 1)[:, None]
    for _ in range(ROUNDS):
        exposure = there.T @ (1 / (there @ strength))
        strength = total / np.maximum(exposure, np.finfo(np.float64).tiny)
    return strength
