"""The positions of a sample with their labels; how well clusters and linear probes predict these.

Clusters are scored by the mutual information of clusters and labels, normalised by the mean of
their entropies. Baseline: labels permuted by number, so that the characters of one number keep a
common label. Labels permuted position by position, or shifted, would make any smooth clustering
look significant.

The probe is linear discriminant analysis, which has a closed form: no learning rate and no stopping
rule. It is scored on questions that it was not fitted on. Text probes see only the text, in a
window that widens until this no longer helps. Intervals are bootstraps over questions, because the
positions of a question are not independent. docs/interpretation.md has baselines and controls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import entr

from tp_transformer.interpret.core.record import Floats, Integers
from tp_transformer.interpret.core.result import ratio_interval
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.core.structure import (
    LABELS,
    WORDING_LABELS,
    labels,
    unreversed_sides,
)
from tp_transformer.scoring.statistics import Interval, resample

FOLDS = 5
PERMUTATIONS = 200  # of labels, for the baseline of clusters
PROBE_PERMUTATIONS = 5  # for the baseline of probes, which take longer
RESAMPLES = 500  # of questions, for the interval of clusters
ERROR = 0.05
FEWEST_QUESTIONS = 10  # in which a label must occur to be scored
RIDGE = 1e-3  # times the mean variance, added to each variance: features may be constant
WIDENING = 2  # additional characters on each side for the next text probe
PATIENCE = 3  # text probes in a row without improvement


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The source positions of all questions of a sample, concatenated."""

    questions: tuple[str, ...]
    question: Integers  # (position,): the index of the question
    characters: str
    labels: dict[str, list[str | None]]
    unreversed_sides: list[str | None]

    @classmethod
    def of(cls, sample: Sample) -> "Positions":
        """Collect the positions; labels of expressions come first, and also if there are none."""
        values_of: dict[str, list[str | None]] = {name: [] for name in (*LABELS, *WORDING_LABELS)}
        unreversed: list[str | None] = []
        texts = [token_characters(question) for question in sample.questions]
        for text, parsed in zip(texts, sample.parsed, strict=True):
            none: list[str | None] = [None] * len(text)
            of_question = labels(parsed)
            for name, values in values_of.items():
                values += of_question.get(name, none)
            unreversed += none if isinstance(parsed, str) else unreversed_sides(parsed)
        return cls(
            questions=sample.questions,
            question=np.repeat(np.arange(len(texts)), list(map(len, texts))),
            characters="".join(texts),
            labels={
                name: values
                for name, values in values_of.items()
                if name in LABELS or any(value is not None for value in values)
            },
            unreversed_sides=unreversed,
        )

    @property
    def longest(self) -> int:
        """The number of positions of the longest question."""
        return int(np.bincount(self.question).max())

    def split(self, values: Integers) -> tuple[Integers, ...]:
        """Split values of all positions by question."""
        return tuple(np.split(values, np.flatnonzero(np.diff(self.question)) + 1))

    def character_features(self, reach: int) -> Floats:
        """Return features of the text alone, one-hot: (position, feature).

        They are the index of the position, its character, and `reach` characters on each side,
        with a class of its own for neighbours beyond the ends of the question.
        """
        alphabet = sorted(set(self.characters))
        ids_of = {character: i + 1 for i, character in enumerate(alphabet)}
        rows = []
        for question in self.questions:
            ids = [ids_of[character] for character in token_characters(question)]
            padded = np.pad(ids, reach)
            windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
            rows.append(np.column_stack([windows, np.arange(len(ids))]))
        columns = np.concatenate(rows).T
        return np.concatenate([np.eye(column.max() + 1)[column] for column in columns], axis=1)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The positions of a sample that have a label; labels in too few questions are left out."""

    name: str
    classes: tuple[str, ...]
    label: Integers  # (labelled,): an index into `classes`
    position: Integers  # (labelled,): index into all positions
    question: Integers  # (labelled,): index of the question
    number: Integers  # (labelled,): index of the run of labelled positions
    n_left_out: int  # positions whose label is too rare

    @classmethod
    def of(
        cls,
        name: str,
        labels: Sequence[str | None],
        question: Integers,
        fewest: int = FEWEST_QUESTIONS,
    ) -> "Labelled":
        """Collect the labels of all positions, given the question of each."""
        names = sorted({label for label in labels if label is not None})
        number = {label: i for i, label in enumerate(names)}
        index = np.array([-1 if label is None else number[label] for label in labels], np.int64)
        kept = [i for i in range(len(names)) if len(np.unique(question[index == i])) >= fewest]
        renumbered = np.full(len(names) + 1, -1)  # the last entry is for positions without a label
        renumbered[kept] = np.arange(len(kept))
        label = renumbered[index]
        position = np.flatnonzero(label >= 0)
        return cls(
            name=name,
            classes=tuple(names[i] for i in kept),
            label=label[position],
            position=position,
            question=question[position],
            number=_stretches(position, question[position]),
            n_left_out=int((index >= 0).sum()) - len(position),
        )

    def permuted(self, rng: np.random.Generator) -> Integers:
        """Permute the labels among numbers, or within each if its characters differ in label."""
        first = np.flatnonzero(np.diff(self.number, prepend=-1))
        if np.array_equal(self.label[first][self.number], self.label):
            return rng.permutation(self.label[first])[self.number]
        return self.label[np.lexsort((rng.random(len(self.label)), self.number))]

    @property
    def obstacle(self) -> str | None:
        """The reason why nothing can be scored, or None."""
        if len(self.classes) < 2:
            return f"fewer than two labels occur in {FEWEST_QUESTIONS} questions each"
        return None


@dataclass(frozen=True, kw_only=True)
class ClusterInformation:
    """Normalised mutual information of clusters and labels, from 0 to 1."""

    score: float
    interval: Interval | None  # 95%, by bootstrap over questions; None for too few of them
    baseline: float  # mean over permuted labels
    baseline_interval: Interval  # 2.5% to 97.5% quantile over permuted labels


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Predictions for questions that the predictor was not fitted on."""

    accuracy: float  # the share of positions that are predicted correctly


@dataclass(frozen=True, kw_only=True)
class Probed(Scored):
    """The accuracy of a linear probe."""

    interval: Interval  # 95% for all compared probes together, by bootstrap over questions
    majority: float  # accuracy of the most frequent label
    baseline: float  # mean accuracy of probes fitted to permuted labels


S = TypeVar("S", bound=Scored)


def normalised_information(counts: Integers) -> Floats:
    """Mutual information over the mean entropy of contingency tables (…, cluster, class).

    scikit-learn's `normalized_mutual_info_score` gives the same number (a test compares them), but
    takes one pair of labellings at a time and fifty times as long (2,500 positions).
    """
    shares = counts / counts.sum(axis=(-2, -1), keepdims=True)
    rows, columns = (entr(shares.sum(axis=axis)).sum(axis=-1) for axis in (-1, -2))
    mean = (rows + columns) / 2
    scores = np.divide(
        rows + columns - entr(shares).sum(axis=(-2, -1)),
        mean,
        out=np.zeros_like(mean),
        where=mean > 0,
    )
    return np.maximum(scores, 0.0)  # rounding may leave a value slightly below zero


def contingency(clusters: Integers, labels: Integers, n_clusters: int, n_classes: int) -> Integers:
    """Count the positions with each cluster and class: (cluster, class)."""
    cells = np.bincount(clusters * n_classes + labels, minlength=n_clusters * n_classes)
    return cells.reshape(n_clusters, n_classes)


def information(
    clusters: Integers, labelled: Labelled, n_clusters: int, seed: int
) -> ClusterInformation:
    """Score the clusters of all positions against the labels."""
    rng = np.random.default_rng(seed)
    assigned, n_classes = clusters[labelled.position], len(labelled.classes)
    permuted = (labelled.permuted(rng) for _ in range(PERMUTATIONS))
    tables = [
        contingency(assigned, labels, n_clusters, n_classes)
        for labels in (labelled.label, *permuted)
    ]
    score, *baselines = normalised_information(np.stack(tables)).tolist()
    low, high = np.quantile(baselines, [0.025, 0.975])
    return ClusterInformation(
        score=score,
        interval=_information_interval(assigned, labelled, n_clusters, seed),
        baseline=float(np.mean(baselines)),
        baseline_interval=(float(low), float(high)),
    )


def _information_interval(
    clusters: Integers, labelled: Labelled, n_clusters: int, seed: int
) -> Interval | None:
    n_classes = len(labelled.classes)
    questions, which = np.unique(labelled.question, return_inverse=True)
    tables = contingency(
        which * n_clusters + clusters, labelled.label, len(questions) * n_clusters, n_classes
    ).reshape(len(questions), -1)
    return resample(
        len(questions),
        lambda drawn: normalised_information((drawn @ tables).reshape(-1, n_clusters, n_classes)),
        resamples=RESAMPLES,
        seed=seed,
    )


class Probe:
    """Linear discriminant analysis with a ridge.

    scikit-learn's `lsqr` solver gives the same predictions (a test compares them), but takes 3 to
    40 times as long (2,500 positions, 8 to 1,000 features), and refuses a single class.
    """

    def __init__(self, vectors: Floats, labels: Integers, n_classes: int) -> None:
        one_hot = np.eye(n_classes)[labels]
        counts = one_hot.sum(axis=0)
        means = one_hot.T @ vectors / np.maximum(counts, 1)[:, None]
        within = vectors - means[labels]
        covariance = within.T @ within / len(vectors)
        level = RIDGE * np.trace(covariance) / len(covariance) + np.finfo(np.float64).tiny
        covariance[np.diag_indices_from(covariance)] += level
        self.weight = np.linalg.solve(covariance, means.T)  # (feature, class)
        prior = np.full(n_classes, -np.inf)  # a class that was never seen is never predicted
        prior[counts > 0] = np.log(counts[counts > 0] / len(labels))
        self.bias = prior - (means * self.weight.T).sum(axis=1) / 2

    def __call__(self, vectors: Floats) -> Integers:
        """Return the most probable class of each vector."""
        return (vectors @ self.weight + self.bias).argmax(axis=1)


def folds(question: Integers, seed: int) -> Integers:
    """Return a fold for each position; all positions of a question are in the same fold."""
    questions = np.unique(question)
    fold = np.random.default_rng(seed).permutation(len(questions)) % min(FOLDS, len(questions))
    return fold[np.searchsorted(questions, question)]


def held_out(vectors: Floats, labels: Integers, n_classes: int, fold: Integers) -> Integers:
    """Predict the class of each position by probes fitted on the other folds."""
    predicted = np.empty_like(labels)
    for number in range(fold.max() + 1):
        test = fold == number
        predicted[test] = Probe(vectors[~test], labels[~test], n_classes)(vectors[test])
    return predicted


def probe(
    vectors: Floats,
    labelled: Labelled,
    seed: int,
    *,
    n_permutations: int = PROBE_PERMUTATIONS,
    n_compared: int = 1,
) -> Probed:
    """Fit and score probes on the vectors of all positions (position, feature).

    `n_compared` is the number of probes from which the best will be chosen; the interval is
    corrected for it.
    """
    rng = np.random.default_rng(seed)
    features, n_classes, truth = vectors[labelled.position], len(labelled.classes), labelled.label
    fold = folds(labelled.question, seed)
    right = held_out(features, truth, n_classes, fold) == truth
    baselines = [
        (held_out(features, labelled.permuted(rng), n_classes, fold) == truth).mean()
        for _ in range(n_permutations)
    ]
    return Probed(
        accuracy=float(right.mean()),
        interval=question_bootstrap(right.astype(np.float64), labelled.question, seed, n_compared),
        majority=float(np.bincount(truth).max() / len(truth)),
        baseline=float(np.mean(baselines)),
    )


def widen(score: Callable[[int], S], longest: int) -> dict[int, S]:
    """Score text probes by the number of characters that they see on each side.

    The window widens until PATIENCE probes in a row are no better than the best before them, or
    until it covers the longest question.
    """
    scored = {0: score(0)}
    best = 0
    while max(scored) < longest - 1 and max(scored) - best < PATIENCE * WIDENING:
        reach = max(scored) + WIDENING
        scored[reach] = score(reach)
        if scored[reach].accuracy > scored[best].accuracy:
            best = reach
    return scored


def question_bootstrap(
    values: Floats, question: Integers, seed: int, n_compared: int = 1
) -> Interval:
    """Return a 95% interval of the mean of values, resampling questions with all their values."""
    interval = ratio_interval(
        values,
        group=question,
        resamples=max(2_000, 400 * n_compared),  # ten beyond each limit
        seed=seed,
        confidence=1 - ERROR / n_compared,
    )
    return interval or (0.0, 1.0)  # too few questions: anything is possible


def _stretches(position: Integers, question: Integers) -> Integers:
    """Number the runs of consecutive positions within a question."""
    begins = (np.diff(position, prepend=-2) != 1) | (np.diff(question, prepend=-1) != 0)
    return np.cumsum(begins) - 1
