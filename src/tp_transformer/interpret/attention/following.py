"""How well heads follow a relation, such as "second argument to its operator".

A head is scored by its attention mass on the related positions, averaged over all positions that
have the relation, minus the largest of these baselines over the same positions:

- even: the mass of uniform attention, which is the share of the related positions.
- exchanged: the mass on positions that other positions of the question are related to, or the even
  baseline if there are none.
- by text: the mass of the nearest structure-blind head, fitted on other questions.
- skipped, for relations that skip positions in between: the mass from those positions on the same
  keys, corrected for the difference that characters and distance make.

Untrained heads also have a margin, because positions and characters alone make their attention
uneven. A head clearly follows a relation only if the interval of its margin lies above the largest
margin of any untrained head, and above LEAST_MARGIN. The intervals hold for all heads and all
relations of a search together. docs/interpretation.md has simulations.

In the model of a structure-blind head, every pair of a key's character and its distance from the
query has a strength, for each kind of query character. A query divides its attention among the keys
of its question in proportion to their strengths (the choice model of Luce, 1959). A head that
attends to the nearest operator, or to its neighbours, is such a head. Strengths are fitted on some
questions and applied to others, so that the model cannot memorise the attention in the questions
that it is scored on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.stats import norm, t

from tp_transformer.interpret.core.record import Booleans, Floats, Integers
from tp_transformer.interpret.core.relations import RELATIONS, SKIPPED, Pairs, Relation
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.interpret.core.structure import Parsed
from tp_transformer.scoring.statistics import CONFIDENCE, FEWEST, Interval

RESAMPLES = 2_000
# Simulated structure-blind heads have margins up to 0.034, or up to 0.063 if the baselines do not
# cover them, as for heads that attend to the second operator before (128 questions;
# docs/interpretation.md).
LEAST_MARGIN = 0.05
FOLDS = 4  # strengths are fitted on the questions of the other folds
ROUNDS = 20  # iterations of the fit
PRIOR = 0.3  # weight of the coarser model, in occurrences of a cell


@dataclass(frozen=True, kw_only=True)
class Following:
    """How well a head follows a relation, averaged over all positions that have it."""

    layer: int
    head: int
    mass: float
    even: float  # the mass of uniform attention
    exchanged: float  # the mass on positions that others are related to
    by_text: float  # the mass of the nearest structure-blind head
    skipped: float | None  # the mass from skipped positions; None if the relation skips none
    baseline: float  # the largest baseline
    margin: float  # the mass minus the baseline; heads are ranked by it
    interval: Interval | None  # of the margin; None for too few questions
    is_clear: bool | None  # whether the interval lies above the threshold
    hits: float  # share of positions whose most attended position is a related one


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """All heads, ranked by how well they follow a relation."""

    relation: str
    n_positions: int  # positions that have the relation
    n_questions: int
    initial: float  # the largest margin of untrained heads
    heads: tuple[Following, ...]  # empty if no question has the relation

    @property
    def threshold(self) -> float:
        """The margin above which the interval of a clear head lies."""
        return max(self.initial, LEAST_MARGIN)

    @property
    def clear(self) -> tuple[Following, ...]:
        """The heads that clearly follow the relation."""
        return tuple(head for head in self.heads if head.is_clear)

    @property
    def best(self) -> Following:
        """The best clear head, or the best candidate if there is none."""
        return (self.clear or self.heads)[0]


@dataclass(frozen=True, kw_only=True)
class ModelAttention:
    """The attention of all heads in each question, and that of structure-blind heads."""

    questions: tuple[Parsed, ...]
    weights: tuple[Floats, ...]  # (layer, head, query, key)
    by_text: tuple[Floats, ...]  # (layer, head, query, key)

    @classmethod
    def of(
        cls, weights: Sequence[npt.NDArray[np.floating]], questions: Sequence[Parsed]
    ) -> "ModelAttention":
        """Keep the questions that have a structure, and fit structure-blind heads to them."""
        structured = [
            (piece.astype(np.float64), question)
            for piece, question in zip(weights, questions, strict=True)
            if not isinstance(question, str)
            or any(relation(question) for relation in RELATIONS.values())
        ]
        kept = tuple(piece for piece, _ in structured)
        texts = [
            token_characters(question if isinstance(question, str) else question.question)
            for _, question in structured
        ]
        return cls(
            questions=tuple(question for _, question in structured),
            weights=kept,
            by_text=text_attention(kept, texts),
        )


def rank(
    relations: Mapping[str, Relation],
    attention: ModelAttention,
    *,
    initial: Mapping[str, float],
    seed: int,
) -> tuple[Ranking, ...]:
    """Rank heads by each relation; `initial` are the largest margins of untrained models."""
    measured = {name: _measure(name, relation, attention) for name, relation in relations.items()}
    intervals = _intervals(
        {name: scores for name, scores in measured.items() if len(scores) >= FEWEST}, seed
    )
    return tuple(
        _ranking(name, scores, initial[name], intervals.get(name))
        for name, scores in measured.items()
    )


def largest_margin(name: str, relation: Relation, attention: ModelAttention) -> float:
    """Return the margin of the best head; 0 if no question has the relation."""
    measured = _measure(name, relation, attention)
    if not measured:
        return 0.0
    mass = np.concatenate([question.mass for question in measured]).mean(axis=0)
    baselines = np.concatenate([question.baselines for question in measured]).mean(axis=0)
    return float((mass - baselines.max(axis=0)).max())


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """The scores of each position of a question that has the relation."""

    mass: Floats  # (position, layer, head)
    baselines: Floats  # (position, baseline, layer, head): even, exchanged, by text, skipped if any
    hits: Floats  # (position, layer, head)

    @classmethod
    def of(cls, weights: Floats, by_text: Floats, pairs: Pairs, skipped: Pairs) -> "_Measured":
        """Score the pairs of one question, given its weights (layer, head, query, key)."""
        sets = list(dict.fromkeys(keys for _, keys in pairs))
        chosen = np.zeros((len(sets), weights.shape[-1]))
        for row, keys in enumerate(sets):
            chosen[row, list(keys)] = 1
        set_index = np.array([sets.index(keys) for _, keys in pairs])
        queries = np.array([query for query, _ in pairs])
        each = np.arange(len(pairs))
        attended = np.moveaxis(weights[:, :, queries], 2, 0)  # (position, layer, head, key)
        on_sets = attended @ chosen.T
        mass = on_sets[each, ..., set_index]
        even = np.broadcast_to(chosen.mean(axis=-1)[set_index][:, None, None], mass.shape)
        others = len(sets) - 1
        exchanged = (on_sets.sum(axis=-1) - mass) / others if others else even
        usual = (np.moveaxis(by_text[:, :, queries], 2, 0) @ chosen.T)[each, ..., set_index]
        baselines = [even, exchanged, usual]
        if skipped:
            beyond_text = _mass(weights, skipped) - _mass(by_text, skipped)
            baselines.append(usual + beyond_text.mean(axis=0))
        most = attended.argmax(axis=-1)
        return cls(
            mass=mass,
            baselines=np.stack(baselines, axis=1),
            hits=chosen[set_index[:, None, None], most],
        )


def _mass(weights: Floats, pairs: Pairs) -> Floats:
    """Return the attention of each query to its keys: (position, layer, head)."""
    return np.stack([weights[:, :, query, list(keys)].sum(axis=-1) for query, keys in pairs])


def _measure(name: str, relation: Relation, attention: ModelAttention) -> list[_Measured]:
    recorded = zip(attention.questions, attention.weights, attention.by_text, strict=True)
    skipped = SKIPPED.get(name)
    return [
        _Measured.of(weights, by_text, pairs, skipped(question) if skipped else [])
        for question, weights, by_text in recorded
        if (pairs := relation(question))
    ]


def _ranking(
    name: str, measured: Sequence[_Measured], initial: float, intervals: Floats | None
) -> Ranking:
    ranking = Ranking(
        relation=name,
        n_positions=sum(len(question.mass) for question in measured),
        n_questions=len(measured),
        initial=initial,
        heads=(),
    )
    if not measured:
        return ranking
    mass, hits, baselines = (
        np.concatenate([getattr(question, name) for question in measured]).mean(axis=0)
        for name in ("mass", "hits", "baselines")
    )
    baseline = baselines.max(axis=0)
    ranked = []
    for at in np.ndindex(mass.shape):
        interval = None if intervals is None else (float(intervals[0][at]), float(intervals[1][at]))
        even, exchanged, by_text, *skipped = (float(values[at]) for values in baselines)
        ranked.append(
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
                is_clear=None if interval is None else interval[0] > ranking.threshold,
                hits=float(hits[at]),
            )
        )
    return replace(ranking, heads=tuple(sorted(ranked, key=lambda head: -head.margin)))


def _intervals(measured: Mapping[str, Sequence[_Measured]], seed: int) -> dict[str, Floats]:
    """Return, for each relation, the interval of the margin of each head: (end, layer, head).

    The intervals hold simultaneously (maximum-t bootstrap): their width in standard errors is the
    95% quantile, over resamples, of the largest deviation among all heads and relations. Questions
    are resampled, and the largest baseline is chosen in each resample. For n questions, normal
    quantiles are replaced by those of Student's t with n - 1 degrees of freedom.
    """
    margins, errors = {}, {}
    farthest = np.zeros(RESAMPLES)
    streams = np.random.default_rng(seed).spawn(len(measured))
    for (name, scores), rng in zip(measured.items(), streams, strict=True):
        margins[name], resampled = _resampled_margins(scores, rng)
        error = resampled.std(axis=0)
        off = np.abs(resampled - margins[name]) / np.maximum(error, np.finfo(np.float64).tiny)
        farthest = np.maximum(farthest, off.max(axis=(1, 2)))
        errors[name] = error * np.sqrt(len(scores) / (len(scores) - 1))
    tail = norm.sf(np.quantile(farthest, CONFIDENCE))
    intervals = {}
    for name, scores in measured.items():
        reach = t.isf(tail, len(scores) - 1) * errors[name]
        intervals[name] = np.stack([margins[name] - reach, margins[name] + reach])
    return intervals


def _resampled_margins(
    measured: Sequence[_Measured], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the margins, (layer, head), and those of resamples, (resample, layer, head)."""
    n = len(measured)
    counts = np.array([len(question.mass) for question in measured])
    sums = np.stack(
        [(question.mass[:, None] - question.baselines).sum(axis=0) for question in measured]
    )
    margins = (sums.sum(axis=0) / counts.sum()).min(axis=0)
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = (drawn @ sums.reshape(n, -1)) / (drawn @ counts)[:, None]
    return margins, means.reshape(RESAMPLES, *sums.shape[1:]).min(axis=1)


def text_attention(weights: Sequence[Floats], texts: Sequence[str]) -> tuple[Floats, ...]:
    """Return the weights of the structure-blind heads that are nearest to the given weights.

    Args:
        weights: attention to each text, (layer, head, query, key)
        texts: one character for each position
    """
    predicted = tuple(np.empty_like(fitted) for fitted in weights)
    # Equal texts are in the same fold.
    unique, text_number = np.unique(np.array(texts), return_inverse=True)
    folds = (np.random.default_rng(0).permutation(len(unique)) % FOLDS)[text_number]
    for queries in _queries(weights, texts):
        in_fold = folds[queries.text]
        for fold in np.unique(in_fold):
            scored = in_fold == fold
            strengths = queries.fit(~scored)
            for number in np.flatnonzero(scored):
                fitted = strengths[queries.keys_of(int(number))]  # (key, layer * head)
                text, at = int(queries.text[number]), int(queries.at[number])
                shape = (*predicted[text].shape[:2], len(fitted))
                predicted[text][:, :, at] = (fitted / fitted.sum(axis=0)).T.reshape(shape)
    return predicted


def kind(character: str) -> str:
    """Return the kind of a character: digit, letter, or the character itself."""
    if character.isdigit():
        return "digit"
    return "letter" if character.isalpha() else character


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """All query positions whose characters are of one kind, and their keys."""

    text: Integers  # (query,): index of the text
    at: Integers  # (query,): position in the text
    start: Integers  # (query + 1,): index of the first key of each query among all keys
    levels: tuple[Integers, ...]  # (key,): the cell of each key, from the coarsest to the finest
    weights: Floats  # (key, layer * head)

    def keys_of(self, query: int) -> Integers:
        """Return the cells of the keys of a query in the finest model."""
        return self.levels[-1][self.start[query] : self.start[query + 1]]

    def fit(self, chosen: Booleans) -> Floats:
        """Fit the strengths of all cells of the finest model, (cell, layer * head).

        The prior of each model is the next coarser model, which decides where a cell is rare among
        the chosen queries. The models use distance alone, then also the kind of the key's
        character, then the character itself.
        """
        of_key = np.repeat(chosen, np.diff(self.start))
        n_keys = np.diff(self.start)[chosen]
        indptr = np.concatenate([[0], np.cumsum(n_keys)])
        weights = self.weights[of_key]
        strengths = np.full((1, weights.shape[1]), 1 / max(n_keys.mean(), 1) if len(n_keys) else 1)
        parents = np.zeros(len(self.levels[0]), np.int64)
        for cells in self.levels:
            n_cells = int(cells.max()) + 1
            parent = np.zeros(n_cells, np.int64)
            parent[cells] = parents
            shape = (len(n_keys), n_cells)
            there = csr_array((np.ones(len(weights)), cells[of_key], indptr), shape=shape)
            strengths = _strengths(there, weights, strengths[parent])
            parents = cells
        return strengths


def _queries(weights: Sequence[Floats], texts: Sequence[str]) -> Iterator[_Queries]:
    farthest = max(map(len, texts), default=0)
    kinds = [[kind(character) for character in text] for text in texts]
    numbered = {name: number for number, name in enumerate(sorted({*"".join(texts)}))}
    of_kind = {
        name: number for number, name in enumerate(sorted({k for row in kinds for k in row}))
    }
    for name in of_kind:
        places = [
            (text, at)
            for text, row in enumerate(kinds)
            for at, kind_of in enumerate(row)
            if kind_of == name
        ]
        n_keys = [len(texts[text]) for text, _ in places]
        distance = np.concatenate(
            [
                np.arange(farthest - at, farthest - at + n)
                for (_, at), n in zip(places, n_keys, strict=True)
            ]
        )
        character = np.array([numbered[token] for text, _ in places for token in texts[text]])
        key_kind = np.array([of_kind[token] for text, _ in places for token in kinds[text]])
        cells = (distance, key_kind * 2 * farthest + distance, character * 2 * farthest + distance)
        yield _Queries(
            text=np.array([text for text, _ in places]),
            at=np.array([at for _, at in places]),
            start=np.concatenate([[0], np.cumsum(n_keys)]),
            levels=tuple(np.unique(level, return_inverse=True)[1] for level in cells),
            weights=np.concatenate(
                [
                    weights[text][:, :, at].reshape(-1, n).T
                    for (text, at), n in zip(places, n_keys, strict=True)
                ]
            ),
        )


def _strengths(there: csr_array, weights: Floats, prior: Floats) -> Floats:
    """Return the most probable strength of each cell, (cell, head), given the attention to keys.

    The iteration of Hunter (2004), which increases the posterior in every round, with the gamma
    prior of Caron and Doucet (2012). A mean of the attention in each cell would be biased, because
    questions differ in the number of keys that a head attends to.
    """
    select = csr_array(
        (there.data, there.indices, np.arange(len(weights) + 1)),
        shape=(len(weights), there.shape[1]),
    )
    total = select.T.tocsr() @ weights
    back = there.T.tocsr()
    strengths = prior
    for _ in range(ROUNDS):
        exposure = back @ (1 / (there @ strengths))
        strengths = (total + PRIOR * prior) / (exposure + PRIOR)
    return strengths
