"""Whether the sides of fractions reverse under a denominator's denominator (section 5.1).

The paper reports that in a fraction of fractions the clusters of numerators and denominators are
"placed such that the second fraction reverses": in (a/b)/(c/d), c counts as a denominator and d as
a numerator. The label `side` has this reversal built in, so a high score of it alone is no evidence
for the reversal.

Here readers of vectors are fitted only where the reversed and the unreversed label agree, and asked
where they disagree, in questions that they were not fitted on. There each answer is either the
reversed or the unreversed side. The share of reversed ones is averaged over the two sides, so that
a reader that always gives the same answer gets 50%. A linear probe is such a reader, and so is a
table of which side each cluster is more typical of. Beside them stand untrained models and readers
of the text, which tend to the unreversed side: where the labels agree, what follows a "/" is mostly
a denominator.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.positions import Positions
from tp_transformer.interpret.probes import FEWEST_QUESTIONS, Floats, Integers, Probe, folds
from tp_transformer.interpret.structure import DENOMINATOR, NUMERATOR, SIDE
from tp_transformer.scoring.statistics import Interval, resample

Booleans = npt.NDArray[np.bool_]
# From vectors with sides, and others, to the sides of the others.
Reader = Callable[[Floats, Integers, Floats], Integers]

SIDES = (NUMERATOR, DENOMINATOR)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The positions that have a side, with both labels as indices into SIDES."""

    position: Integers  # (labelled,): which of all positions
    question: Integers  # (labelled,)
    reversed: Integers  # (labelled,)
    unreversed: Integers  # (labelled,)

    @classmethod
    def of(cls, positions: Positions) -> "Sides":
        """Collect the labels of all positions."""
        labels = positions.labels[SIDE]
        at = np.array([i for i, side in enumerate(labels) if side is not None], np.int64)
        return cls(
            position=at,
            question=positions.question[at],
            reversed=np.array([labels[i] == DENOMINATOR for i in at], np.int64),
            unreversed=np.array(
                [positions.unreversed_sides[i] == DENOMINATOR for i in at], np.int64
            ),
        )

    @property
    def agree(self) -> Booleans:
        """Where both labels are the same."""
        return self.reversed == self.unreversed

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be said, if so."""
        for where, name in ((self.agree, "agree"), (~self.agree, "disagree")):
            for number, side in enumerate(SIDES):
                n_questions = len(np.unique(self.question[where & (self.reversed == number)]))
                if n_questions < FEWEST_QUESTIONS:
                    return (
                        f"only {n_questions} questions have a {side} where reversed and "
                        f"unreversed sides {name}; it takes {FEWEST_QUESTIONS}"
                    )
        return None


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What a reader that was fitted where the labels agree says elsewhere."""

    accuracy: float  # where they agree, on other questions, averaged over the two sides
    reversed_share: float  # where they disagree, averaged over the two sides
    interval: Interval  # 95% of that share, by bootstrap over questions


@dataclass(frozen=True, kw_only=True)
class HeadTransfer:
    """A head's vectors and clusters as readers."""

    layer: int
    head: int
    probe: Transfer
    clusters: Transfer


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """Reversed or unreversed sides, in every head and in what it is compared with.

    Attributes:
        n_agreeing: positions that readers are fitted on
        n_disagreeing: positions that they are asked about
        n_questions: which have such a position
        obstacle: why nothing can be said; then there are no heads
        heads: of every layer
        readers: of the text, by how many characters on each side they see
        initial: of models with initial weights, the head whose probe does best where labels agree
    """

    n_agreeing: int
    n_disagreeing: int
    n_questions: int
    obstacle: str | None
    heads: tuple[HeadTransfer, ...]
    readers: dict[int, Transfer]
    initial: tuple[Transfer, ...]

    @property
    def meaning(self) -> str:
        """What was found; the head is chosen where labels agree, so that the choice is no bias."""
        if self.obstacle is not None:
            return f"reversal: not tested, as {self.obstacle}."
        best = max(self.heads, key=lambda one: one.probe.accuracy)
        by_clusters = max(self.heads, key=lambda one: one.clusters.accuracy)
        widest = max(self.readers, key=lambda reach: self.readers[reach].accuracy)
        initial = ", ".join(f"{one.reversed_share:.0%}" for one in self.initial)
        return (
            f"reversal: fitted where a reversed and an unreversed side are the same "
            f"({self.n_agreeing:,} positions) and asked where they are not "
            f"({self.n_disagreeing:,} positions of {self.n_questions} questions), the probe that "
            f"does best on the former (head {best.layer}.{best.head}, right in "
            f"{best.probe.accuracy:.0%}) gives the reversed side in {_in_words(best.probe)}: "
            f"{self.verdict}. The clusters that do best there (head {by_clusters.layer}."
            f"{by_clusters.head}, {by_clusters.clusters.accuracy:.0%}) give it in "
            f"{_in_words(by_clusters.clusters)}, models with initial weights in {initial}, the "
            f"strongest linear reader of the text ({widest} characters on each side, "
            f"{self.readers[widest].accuracy:.0%}) in {self.readers[widest].reversed_share:.0%}."
        )

    @property
    def verdict(self) -> str:
        """Which label the probe follows, and whether that takes training and more than text."""
        best = max((one.probe for one in self.heads), key=lambda one: one.accuracy)
        low, high = best.interval
        if high < 0.5:
            return "sides are not reversed"
        if low <= 0.5:
            return "neither label is clearly followed"
        controls = [*self.initial, *self.readers.values()]
        if low > max(one.interval[1] for one in controls):
            return "sides are reversed, more than in untrained models and readers of the text"
        return "sides are reversed, but not surely more than in untrained models or the text"

    def to_values(self) -> Values:
        """All of it as plain values."""
        values = asdict(self)
        verdict = None if self.obstacle is not None else self.verdict
        return {**values, "verdict": verdict}


def _in_words(one: Transfer) -> str:
    low, high = one.interval
    return f"{one.reversed_share:.0%} (95% {low:.0%} to {high:.0%})"


def by_probe(vectors: Floats, sides: Integers, others: Floats) -> Integers:
    """Sides by linear discriminant analysis."""
    return Probe(vectors, sides, len(SIDES))(others)


def by_cluster(clusters: Floats, sides: Integers, others: Floats) -> Integers:
    """The side that the cluster is more typical of; clusters are one-hot vectors."""
    counts = clusters.T @ np.eye(len(SIDES))[sides]  # (cluster, side)
    shares = counts / np.maximum(1, counts.sum(axis=0))  # of each side, whichever is commoner
    return shares.argmax(axis=1)[others.argmax(axis=1)]


def transfer(vectors: Floats, sides: Sides, seed: int, read: Reader = by_probe) -> Transfer:
    """Fit a reader of the vectors of all positions where labels agree, ask it everywhere."""
    own, agree = vectors[sides.position], sides.agree
    fold = folds(sides.question, seed)
    said = np.empty_like(sides.reversed)
    for number in range(fold.max() + 1):
        out = fold == number
        fitted = ~out & agree
        said[out] = read(own[fitted], sides.reversed[fitted], own[out])
    right = said == sides.reversed
    accuracy, _ = _balanced(right, agree, sides, seed)
    share, interval = _balanced(right, ~agree, sides, seed)
    return Transfer(accuracy=accuracy, reversed_share=share, interval=interval)


def _balanced(right: Booleans, where: Booleans, sides: Sides, seed: int) -> tuple[float, Interval]:
    """The share of right ones, averaged over the two sides, with its interval."""
    questions, which = np.unique(sides.question[where], return_inverse=True)
    cells = 2 * which + sides.reversed[where]
    counts = np.bincount(cells, minlength=2 * len(questions)).reshape(-1, 2)
    sums = np.bincount(cells, right[where], minlength=2 * len(questions)).reshape(-1, 2)

    def share(drawn: Integers) -> Floats:
        n = drawn @ counts
        # A side that no drawn question has says nothing.
        shares = np.divide(drawn @ sums, n, out=np.full(n.shape, 0.5), where=n > 0)
        return shares.mean(axis=1)

    found = resample(len(questions), share, seed=seed)
    value = float(share(np.ones((1, len(questions)), np.int64))[0])
    return value, found or (0.0, 1.0)  # too few questions leave everything open
