"""How well labels can be told from vectors: by clusters, and by a linear probe.

The clusters' score is the mutual information of clusters and labels, normalised by the mean of
their entropies. Its baseline are the same labels dealt anew, but number by number: the characters
of a number have their labels together, and clusters that have nothing to do with the labels tend to
change at the ends of numbers, too. Labels shuffled one by one, or moved along, would make any
smooth clustering look significant (tests show both). Dealt so, unrelated clusters still exceed the
baseline more often than its interval says (docs/interpretation.md), so there is no p-value: the
score is to be read beside the baseline and beside what the characters tell.

The probe is linear discriminant analysis, the closed form among linear classifiers: exact, without
a learning rate or a stopping rule, and fast enough to be fitted thousands of times. It is always
judged on questions that it was not fitted on. Its accuracy stands beside others: of the commonest
label, of the probe fitted to labels dealt anew, of probes of an untrained model's vectors, and of
probes that see no vectors but the text, in a window that widens until that helps no more. The
intervals are bootstraps over questions, because positions of a question are not independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tp_transformer.scoring.statistics import Interval, resample

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 5
DEALS = 200  # baselines of the clusters' score
PROBE_DEALS = 5  # baselines of the probe's, which takes longer
RESAMPLES = 500  # of questions, for the clusters' score
ERROR = 0.05
FEWEST_QUESTIONS = 10  # in which a label must occur to be scored
RIDGE = 1e-3  # of the mean variance, added to each: features may be constant
WIDENING = 2  # characters on each side that the next reader of the text sees more
PATIENCE = 3  # readers in a row that may be no better


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The positions that have a label, of all positions of a sample.

    Labels in too few questions are left out: nothing can be said about them.
    """

    name: str
    classes: tuple[str, ...]
    label: Integers  # (labelled,): an index into `classes`
    position: Integers  # (labelled,): which of all positions
    question: Integers  # (labelled,): in which question
    number: Integers  # (labelled,): in which stretch of labelled positions, ascending
    n_left_out: int  # positions with a label that is too rare

    @classmethod
    def of(
        cls,
        name: str,
        labels: Sequence[str | None],
        question: Integers,
        fewest: int = FEWEST_QUESTIONS,
    ) -> "Labelled":
        """Collect the labels of all positions, given which question each is in."""
        found = sorted({label for label in labels if label is not None})
        number = {label: i for i, label in enumerate(found)}
        index = np.array([-1 if label is None else number[label] for label in labels], np.int64)
        kept = [i for i in range(len(found)) if len(np.unique(question[index == i])) >= fewest]
        renumbered = np.full(len(found) + 1, -1)  # its last place is for those without a label
        renumbered[kept] = np.arange(len(kept))
        label = renumbered[index]
        position = np.flatnonzero(label >= 0)
        return cls(
            name=name,
            classes=tuple(found[i] for i in kept),
            label=label[position],
            position=position,
            question=question[position],
            number=_stretches(position, question[position]),
            n_left_out=int((index >= 0).sum()) - len(position),
        )

    def dealt(self, rng: np.random.Generator) -> Integers:
        """The labels, dealt anew: among numbers, or within each where its characters differ."""
        first = np.flatnonzero(np.diff(self.number, prepend=-1))
        if np.array_equal(self.label[first][self.number], self.label):
            return rng.permutation(self.label[first])[self.number]
        return self.label[np.lexsort((rng.random(len(self.label)), self.number))]

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be scored, if so."""
        if len(self.classes) < 2:
            return f"fewer than two labels occur in {FEWEST_QUESTIONS} questions each"
        return None


@dataclass(frozen=True, kw_only=True)
class Information:
    """What clusters tell about labels: normalised mutual information, 0 to 1."""

    score: float
    interval: Interval | None  # 95%, by bootstrap over questions; None for too few of them
    baseline: float  # the mean over labels dealt anew
    baseline_interval: Interval  # which holds 95% of them


@dataclass(frozen=True, kw_only=True)
class Probed:
    """How often a linear probe is right on questions it was not fitted on."""

    accuracy: float
    interval: Interval  # 95% for all that are compared together, by bootstrap over questions
    majority: float  # the accuracy of always saying the commonest label
    baseline: float  # the accuracy when fitted to labels dealt anew, on average


class HasAccuracy(Protocol):
    """What readers of the text are ranked by."""

    @property
    def accuracy(self) -> float:
        """The share of positions of which the reader is right."""


Told = TypeVar("Told", bound=HasAccuracy)


def normalised_information(first: Integers, second: Integers, n_first: int, n_second: int) -> float:
    """The mutual information of two labellings by the mean of their entropies; 0 if that is 0."""
    joint = np.bincount(first * n_second + second, minlength=n_first * n_second)
    shares = joint.reshape(n_first, n_second) / len(first)
    rows, columns = _entropy(shares.sum(axis=1)), _entropy(shares.sum(axis=0))
    mean = (rows + columns) / 2
    # Rounding may leave a hair below zero.
    return max(0.0, (rows + columns - _entropy(shares)) / mean) if mean > 0 else 0.0


def _entropy(shares: Floats) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def information(clusters: Integers, labelled: Labelled, n_clusters: int, seed: int) -> Information:
    """Score the clusters of all positions against the labels there are."""
    rng = np.random.default_rng(seed)
    own, n_classes = clusters[labelled.position], len(labelled.classes)
    score = normalised_information(own, labelled.label, n_clusters, n_classes)
    others = np.array(
        [
            normalised_information(own, labelled.dealt(rng), n_clusters, n_classes)
            for _ in range(DEALS)
        ]
    )
    low, high = np.quantile(others, [0.025, 0.975])
    return Information(
        score=score,
        interval=_information_interval(own, labelled, n_clusters, seed),
        baseline=float(others.mean()),
        baseline_interval=(float(low), float(high)),
    )


def _information_interval(
    clusters: Integers, labelled: Labelled, n_clusters: int, seed: int
) -> Interval | None:
    n_classes = len(labelled.classes)
    questions, which = np.unique(labelled.question, return_inverse=True)
    cells = (which * n_clusters + clusters) * n_classes + labelled.label
    size = n_clusters * n_classes
    joint = np.bincount(cells, minlength=len(questions) * size).reshape(len(questions), size)

    def scores(drawn: Integers) -> Floats:
        shares = (drawn @ joint).reshape(-1, n_clusters, n_classes).astype(np.float64)
        shares /= shares.sum(axis=(1, 2), keepdims=True)
        rows, columns, both = (
            _entropies(each) for each in (shares.sum(2), shares.sum(1), shares.reshape(-1, size))
        )
        mean = (rows + columns) / 2
        return np.divide(rows + columns - both, mean, out=np.zeros_like(mean), where=mean > 0)

    return resample(len(questions), scores, resamples=RESAMPLES, seed=seed)


def _entropies(shares: Floats) -> Floats:
    """The entropy of each row."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -(shares * logs).sum(axis=1)


class Probe:
    """Linear discriminant analysis: Gaussian classes of one covariance, by Bayes' rule."""

    def __init__(self, vectors: Floats, labels: Integers, n_classes: int) -> None:
        one_hot = np.eye(n_classes)[labels]
        counts = one_hot.sum(axis=0)
        means = one_hot.T @ vectors / np.maximum(counts, 1)[:, None]
        within = vectors - means[labels]
        covariance = within.T @ within / len(vectors)
        level = RIDGE * np.trace(covariance) / len(covariance) + np.finfo(np.float64).tiny
        covariance[np.diag_indices_from(covariance)] += level
        self.weight = np.linalg.solve(covariance, means.T)  # (feature, class)
        prior = np.full(n_classes, -np.inf)  # a class that was never seen is never said
        prior[counts > 0] = np.log(counts[counts > 0] / len(labels))
        self.bias = prior - (means * self.weight.T).sum(axis=1) / 2

    def __call__(self, vectors: Floats) -> Integers:
        """The likeliest class of each vector."""
        return (vectors @ self.weight + self.bias).argmax(axis=1)


def folds(question: Integers, seed: int) -> Integers:
    """A fold for each position; the positions of a question are all in the same one."""
    own = np.unique(question)
    fold = np.random.default_rng(seed).permutation(len(own)) % min(FOLDS, len(own))
    return fold[np.searchsorted(own, question)]


def held_out(vectors: Floats, labels: Integers, n_classes: int, fold: Integers) -> Integers:
    """What probes say about each position, fitted on the other folds."""
    said = np.empty_like(labels)
    for one in range(fold.max() + 1):
        test = fold == one
        said[test] = Probe(vectors[~test], labels[~test], n_classes)(vectors[test])
    return said


def probe(
    vectors: Floats,
    labelled: Labelled,
    seed: int,
    *,
    n_deals: int = PROBE_DEALS,
    n_compared: int = 1,
) -> Probed:
    """Fit and judge probes on the vectors of all positions (position, feature).

    `n_compared` is how many probes the best is chosen from: the interval is then for all together.
    """
    rng = np.random.default_rng(seed)
    own, n_classes, truth = vectors[labelled.position], len(labelled.classes), labelled.label
    fold = folds(labelled.question, seed)
    right = held_out(own, truth, n_classes, fold) == truth
    baselines = [
        (held_out(own, labelled.dealt(rng), n_classes, fold) == truth).mean()
        for _ in range(n_deals)
    ]
    return Probed(
        accuracy=float(right.mean()),
        interval=question_bootstrap(right.astype(np.float64), labelled.question, seed, n_compared),
        majority=float(np.bincount(truth).max() / len(truth)),
        baseline=float(np.mean(baselines)),
    )


def widen(score: Callable[[int], Told], longest: int) -> dict[int, Told]:
    """Score readers of the text by how many characters on each side they see.

    The window widens until PATIENCE times in a row that made no reader better than the best before,
    or until it covers questions of the longest length.
    """
    found = {0: score(0)}
    best = 0
    while max(found) < longest - 1 and max(found) - best < PATIENCE * WIDENING:
        reach = max(found) + WIDENING
        found[reach] = score(reach)
        if found[reach].accuracy > found[best].accuracy:
            best = reach
    return found


def question_bootstrap(
    values: Floats, question: Integers, seed: int, n_compared: int = 1
) -> Interval:
    """A 95% interval of the values' mean, by drawing questions anew with all their values."""
    _, which = np.unique(question, return_inverse=True)
    sums, counts = np.bincount(which, values), np.bincount(which)
    found = resample(
        len(counts),
        lambda drawn: (drawn @ sums) / (drawn @ counts),
        resamples=max(2_000, 400 * n_compared),  # ten of them beyond each limit
        seed=seed,
        confidence=1 - ERROR / n_compared,
    )
    return found or (0.0, 1.0)  # too few questions leave everything open


def _stretches(position: Integers, question: Integers) -> Integers:
    """Of each position, in which stretch of positions without a gap in one question it is."""
    begins = (np.diff(position, prepend=-2) != 1) | (np.diff(question, prepend=-1) != 0)
    return np.cumsum(begins) - 1
