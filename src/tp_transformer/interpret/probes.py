"""How well labels can be told from vectors: by clusters, and by a linear probe.

The clusters' score is the mutual information of clusters and labels, normalised by the mean of
their entropies. Its baseline are the same labels moved along the positions, all by the same
distance: as the labels of neighbours depend on each other and so do their clusters, labels shuffled
one by one would make any smooth clustering look significant.

The probe is linear discriminant analysis, the closed form among linear classifiers: exact, without
a learning rate or a stopping rule, and fast enough to be fitted thousands of times. It is always
judged on questions that it was not fitted on. Its accuracy stands beside four others: of the
commonest label, of the probe fitted to moved labels, and of probes that see no vectors but the
characters. The interval is a bootstrap over questions, because positions of a question are not
independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.scoring.statistics import Interval, resample

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 5
MOVES = 200  # baselines of the clusters' score
PROBE_MOVES = 5  # baselines of the probe's, which takes longer
FEWEST_QUESTIONS = 10  # in which a label must occur to be scored
RIDGE = 1e-3  # of the mean variance, added to each: features may be constant


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
            n_left_out=int((index >= 0).sum()) - len(position),
        )

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
    baseline: float  # the mean over moved labels
    baseline_interval: Interval  # which holds 95% of them
    p_value: float  # the share of moved labels, and of the true ones, that score as much


@dataclass(frozen=True, kw_only=True)
class Probed:
    """How often a linear probe is right on questions it was not fitted on."""

    accuracy: float
    interval: Interval  # 95%, by bootstrap over questions
    majority: float  # the accuracy of always saying the commonest label
    baseline: float  # the accuracy when fitted to moved labels, on average


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


def moved(labels: Integers, rng: np.random.Generator) -> Integers:
    """The labels, all moved along by the same random distance; the last come first."""
    return np.roll(labels, int(rng.integers(1, len(labels))))


def information(clusters: Integers, labelled: Labelled, n_clusters: int, seed: int) -> Information:
    """Score the clusters of all positions against the labels there are."""
    rng = np.random.default_rng(seed)
    own, n_classes = clusters[labelled.position], len(labelled.classes)
    score = normalised_information(own, labelled.label, n_clusters, n_classes)
    others = np.array(
        [
            normalised_information(own, moved(labelled.label, rng), n_clusters, n_classes)
            for _ in range(MOVES)
        ]
    )
    low, high = np.quantile(others, [0.025, 0.975])
    return Information(
        score=score,
        baseline=float(others.mean()),
        baseline_interval=(float(low), float(high)),
        p_value=float((1 + (others >= score).sum()) / (1 + MOVES)),
    )


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


def probe(vectors: Floats, labelled: Labelled, seed: int, n_moves: int = PROBE_MOVES) -> Probed:
    """Fit and judge probes on the vectors of all positions (position, feature)."""
    rng = np.random.default_rng(seed)
    own, n_classes, truth = vectors[labelled.position], len(labelled.classes), labelled.label
    fold = folds(labelled.question, seed)
    right = held_out(own, truth, n_classes, fold) == truth
    baselines = [
        (held_out(own, moved(truth, rng), n_classes, fold) == truth).mean() for _ in range(n_moves)
    ]
    return Probed(
        accuracy=float(right.mean()),
        interval=question_bootstrap(right.astype(np.float64), labelled.question, seed),
        majority=float(np.bincount(truth).max() / len(truth)),
        baseline=float(np.mean(baselines)),
    )


def question_bootstrap(values: Floats, question: Integers, seed: int) -> Interval:
    """A 95% interval of the values' mean, by drawing questions anew with all their values."""
    _, which = np.unique(question, return_inverse=True)
    sums, counts = np.bincount(which, values), np.bincount(which)
    found = resample(len(counts), lambda drawn: (drawn @ sums) / (drawn @ counts), seed=seed)
    return found or (0.0, 1.0)  # a single question leaves everything open
