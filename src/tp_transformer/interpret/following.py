"""Which heads attend as a relation says: from a second argument to its operator, and so on.

For every position that has the relation, the attention mass on the related positions counts. It is
set against two baselines. A head that attends evenly puts the share of the related positions among
all positions there; that is also what positions drawn at random would get, on average. A head that
attends to operators, but to any of them, puts as much on the operators of other arguments: that is
the exchanged baseline, the mass on what other positions of the same question are related to. The
margin is what is left of the mass after the exchanged baseline, or after the even one where a
question has no other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.expressions import Expression
from tp_transformer.interpret.structure import Pairs, Relation
from tp_transformer.scoring.statistics import Interval

Floats = npt.NDArray[np.float64]

RESAMPLES = 10_000
ERROR = 0.05  # how often an interval misses, for one head or more of all that are ranked


@dataclass(frozen=True, kw_only=True)
class Following:
    """How well a head follows a relation; means over all positions that have it."""

    layer: int
    head: int
    mass: float
    even: float  # the mass of a head that attends evenly
    exchanged: float | None  # the mass on what others are related to; None where there are none
    margin: float  # by which heads are ranked
    interval: Interval  # of the margin, by bootstrap over questions, for all heads together
    hits: float  # how often the most attended position is a related one

    @property
    def is_clear(self) -> bool:
        """Whether the head surely attends to what is related more than to what is not."""
        return self.interval[0] > 0 and self.mass > self.even


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The heads that follow a relation, best first."""

    relation: str
    n_positions: int  # that have the relation
    n_questions: int
    heads: tuple[Following, ...]  # empty where no question has the relation


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """For each position that has the relation, (position, layer, head) and (position,)."""

    mass: Floats
    exchanged: Floats  # not a number where there is nothing to exchange
    hits: Floats
    even: Floats

    @classmethod
    def of(cls, weights: Floats, pairs: Pairs) -> "_Measured":
        """Measure the pairs of one question, given its weights (layer, head, query, key)."""
        sets = list(dict.fromkeys(keys for _, keys in pairs))
        chosen = np.zeros((len(sets), weights.shape[-1]))
        for row, keys in enumerate(sets):
            chosen[row, list(keys)] = 1
        own = np.array([sets.index(keys) for _, keys in pairs])
        queries = np.array([query for query, _ in pairs])
        attended = np.moveaxis(weights[:, :, queries], 2, 0)  # (position, layer, head, key)
        on_sets = attended @ chosen.T
        mass = on_sets[np.arange(len(pairs)), ..., own]
        others = max(len(sets) - 1, 1)
        exchanged = (on_sets.sum(axis=-1) - mass) / others if len(sets) > 1 else mass * np.nan
        most = attended.argmax(axis=-1)
        return cls(
            mass=mass,
            exchanged=exchanged,
            hits=np.stack([chosen[one, at] for one, at in zip(own, most, strict=True)]),
            even=chosen.mean(axis=-1)[own],
        )


def rank(
    name: str,
    relation: Relation,
    weights: Iterable[npt.NDArray[np.floating]],
    expressions: Sequence[Expression | None],
    seed: int,
) -> Ranking:
    """Rank heads by their weights on each question, (layer, head, query, key)."""
    measured: list[_Measured] = []
    for own, expression in zip(weights, expressions, strict=True):
        pairs = [] if expression is None else relation(expression)
        if pairs:
            measured.append(_Measured.of(own.astype(np.float64), pairs))
    if not measured:
        return Ranking(relation=name, n_positions=0, n_questions=0, heads=())
    heads = sorted(_follow(measured, seed), key=lambda one: -one.margin)
    return Ranking(
        relation=name,
        n_positions=sum(len(one.even) for one in measured),
        n_questions=len(measured),
        heads=tuple(heads),
    )


def _follow(measured: Sequence[_Measured], seed: int) -> list[Following]:
    mass, exchanged, hits, even = (
        np.concatenate([getattr(one, name) for one in measured])
        for name in ("mass", "exchanged", "hits", "even")
    )
    expected = np.where(np.isnan(exchanged), even[:, None, None], exchanged)
    margin = mass - expected
    counts = [len(one.even) for one in measured]
    low, high = _intervals(margin, counts, seed)
    comparable = ~np.isnan(exchanged[:, 0, 0])
    return [
        Following(
            layer=layer,
            head=head,
            mass=float(mass[:, layer, head].mean()),
            even=float(even.mean()),
            exchanged=float(exchanged[comparable, layer, head].mean())
            if comparable.any()
            else None,
            margin=float(margin[:, layer, head].mean()),
            interval=(float(low[layer, head]), float(high[layer, head])),
            hits=float(hits[:, layer, head].mean()),
        )
        for layer, head in np.ndindex(mass.shape[1:])
    ]


def _intervals(values: Floats, counts: Sequence[int], seed: int) -> tuple[Floats, Floats]:
    """For each layer and head, an interval of the mean, by drawing questions anew."""
    n = len(counts)
    starts = np.cumsum([0, *counts[:-1]])
    sums = np.add.reduceat(values, starts).reshape(n, -1)  # (question, layer * head)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = (drawn @ sums) / (drawn @ np.array(counts))[:, None]
    tail = ERROR / 2 / sums.shape[1]
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])
