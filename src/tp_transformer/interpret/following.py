"""Which heads attend as a relation says: from a second argument to its operator, and so on.

For every position that has the relation, the attention mass on the related positions counts. It is
set against baselines, means over the same positions:

- even: a head that attends evenly puts the share of the related positions among all there. That is
  also what positions drawn at random would get, on average.
- exchanged: a head that attends to operators, but to any of them, puts as much on the operators of
  other arguments: the mass on what other positions of the same question are related to. Where a
  question has no other, the even baseline stands in.
- by text: a head that attends to the nearest operator, or to its neighbours, has much mass on
  related positions although it is blind to structure: the mass if the head went by characters and
  distance alone, as fitted to other questions (`text_attention`).
- skipped, for relations that skip what stands in between: the mass from there on the same
  positions, corrected for the difference that characters and distance make.

The margin is what is left of the mass after the largest of them. Even heads with initial weights
have one, as positions and characters alone make them uneven. So a head follows a relation clearly
only if its margin surely exceeds the greatest of any head of such models, and LEAST_MARGIN. Surely:
the intervals hold for all heads and all relations of a search together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, t

from tp_transformer.interpret.expressions import Expression
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.structure import SKIPPED, Pairs, Relation
from tp_transformer.interpret.text_attention import text_attention
from tp_transformer.scoring.statistics import CONFIDENCE, FEWEST, Interval

Floats = npt.NDArray[np.float64]

RESAMPLES = 2_000
# Of the attention. Simulated heads that are blind to structure have margins up to 0.034, or 0.063
# if the baselines do not cover them: such as look at the second operator before (128 questions;
# docs/interpretation.md).
LEAST_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class Following:
    """How well a head follows a relation; means over all positions that have it."""

    layer: int
    head: int
    mass: float
    even: float  # the mass of a head that attends evenly
    exchanged: float  # the mass on what others are related to; even where there are no others
    by_text: float  # the mass if the head went by characters and distance alone
    skipped: float | None  # the mass from what is to be skipped; None if the relation skips nothing
    baseline: float  # the largest of them
    margin: float  # of the mass over the baseline, by which heads are ranked
    interval: Interval | None  # of the margin; None of too few questions
    is_clear: bool | None  # whether the margin surely exceeds what it must
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
    def to_exceed(self) -> float:
        """What a margin must surely exceed for its head to be clear."""
        return max(self.initial, LEAST_MARGIN)

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
    """What the heads of a model attend to in each question, and would by the text alone."""

    expressions: tuple[Expression, ...]
    weights: tuple[Floats, ...]  # (layer, head, query, key)
    by_text: tuple[Floats, ...]  # alike

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
            by_text=text_attention(kept, [symbols(one.question) for one in read]),
        )


def rank(
    relations: Mapping[str, Relation],
    attention: Attention,
    *,
    initial: Mapping[str, float],
    seed: int,
) -> tuple[Ranking, ...]:
    """Rank heads by each relation; `initial` are the greatest margins of initial weights."""
    measured = {name: _measure(name, one, attention) for name, one in relations.items()}
    intervals = _intervals(
        {name: one for name, one in measured.items() if len(one) >= FEWEST}, seed
    )
    return tuple(
        _ranking(name, own, initial[name], intervals.get(name)) for name, own in measured.items()
    )


def greatest_margin(name: str, relation: Relation, attention: Attention) -> float:
    """The margin of the head that follows a relation best; 0 where no question has it."""
    measured = _measure(name, relation, attention)
    if not measured:
        return 0.0
    mass = np.concatenate([one.mass for one in measured]).mean(axis=0)
    baselines = np.concatenate([one.baselines for one in measured]).mean(axis=0)
    return float((mass - baselines.max(axis=0)).max())


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """For each position of a question that has the relation."""

    mass: Floats  # (position, layer, head)
    baselines: Floats  # (position, baseline, layer, head): even, exchanged, by text, skipped if any
    hits: Floats  # (position, layer, head)

    @classmethod
    def of(cls, weights: Floats, by_text: Floats, pairs: Pairs, skipped: Pairs) -> "_Measured":
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
        usual = (np.moveaxis(by_text[:, :, queries], 2, 0) @ chosen.T)[each, ..., own]
        baselines = [even, exchanged, usual]
        if skipped:
            beyond_text = _mass(weights, skipped) - _mass(by_text, skipped)
            baselines.append(usual + beyond_text.mean(axis=0))
        most = attended.argmax(axis=-1)
        return cls(
            mass=mass,
            baselines=np.stack(baselines, axis=1),
            hits=chosen[own[:, None, None], most],
        )


def _mass(weights: Floats, pairs: Pairs) -> Floats:
    """The attention of each query to its keys, (position, layer, head)."""
    return np.stack([weights[:, :, query, list(keys)].sum(axis=-1) for query, keys in pairs])


def _measure(name: str, relation: Relation, attention: Attention) -> list[_Measured]:
    """Every question that has the relation, measured."""
    found = zip(attention.expressions, attention.weights, attention.by_text, strict=True)
    skipped = SKIPPED.get(name)
    return [
        _Measured.of(weights, by_text, pairs, skipped(expression) if skipped else [])
        for expression, weights, by_text in found
        if (pairs := relation(expression))
    ]


def _ranking(
    name: str, measured: Sequence[_Measured], initial: float, intervals: Floats | None
) -> Ranking:
    """Every head, clear if its margin surely exceeds what it must."""
    ranking = Ranking(
        relation=name,
        n_positions=sum(len(one.mass) for one in measured),
        n_questions=len(measured),
        initial=initial,
        heads=(),
    )
    if not measured:
        return ranking
    mass, hits, baselines = (
        np.concatenate([getattr(one, name) for one in measured]).mean(axis=0)
        for name in ("mass", "hits", "baselines")
    )
    baseline = baselines.max(axis=0)
    found = []
    for at in np.ndindex(mass.shape):
        interval = None if intervals is None else (float(intervals[0][at]), float(intervals[1][at]))
        even, exchanged, by_text, *skipped = (float(one[at]) for one in baselines)
        found.append(
            Following(
                layer=at[0],
                head=at[1],
                mass=float(mass[at]),
                even=even,
                exchanged=exchanged,
                by_text=by_text,
                skipped=skipped[0] if skipped else None,
                baseline=float(baseline[at]),
                margin=float(mass[at] - baseline[at]),
                interval=interval,
                is_clear=None if interval is None else interval[0] > ranking.to_exceed,
                hits=float(hits[at]),
            )
        )
    return replace(ranking, heads=tuple(sorted(found, key=lambda one: -one.margin)))


def _intervals(measured: Mapping[str, Sequence[_Measured]], seed: int) -> dict[str, Floats]:
    """For each relation both ends of each head's interval of the margin: (end, layer, head).

    All of them hold together: they are as wide, in standard errors, as the farthest of all heads
    and relations is off in 95% of the resamples (the maximum-t bootstrap). Questions are resampled,
    and the largest baseline is found in each resample. Of n questions, normal quantiles are
    replaced by those of Student's t with n - 1 degrees of freedom.
    """
    margins, errors = {}, {}
    farthest = np.zeros(RESAMPLES)
    streams = np.random.default_rng(seed).spawn(len(measured))
    for (name, own), rng in zip(measured.items(), streams, strict=True):
        margins[name], resampled = _resampled_margins(own, rng)
        error = resampled.std(axis=0)
        off = np.abs(resampled - margins[name]) / np.maximum(error, np.finfo(np.float64).tiny)
        farthest = np.maximum(farthest, off.max(axis=(1, 2)))
        errors[name] = error * np.sqrt(len(own) / (len(own) - 1))
    tail = norm.sf(np.quantile(farthest, CONFIDENCE))
    found = {}
    for name, own in measured.items():
        reach = t.isf(tail, len(own) - 1) * errors[name]
        found[name] = np.stack([margins[name] - reach, margins[name] + reach])
    return found


def _resampled_margins(
    measured: Sequence[_Measured], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The margins, (layer, head), and those of resampled questions, (resample, layer, head)."""
    n = len(measured)
    counts = np.array([len(one.mass) for one in measured])
    sums = np.stack([(one.mass[:, None] - one.baselines).sum(axis=0) for one in measured])
    margins = (sums.sum(axis=0) / counts.sum()).min(axis=0)
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = (drawn @ sums.reshape(n, -1)) / (drawn @ counts)[:, None]
    return margins, means.reshape(RESAMPLES, *sums.shape[1:]).min(axis=1)
