"""Whether the sides of fractions reverse in a denominator's denominator (section 5.1).

The paper reports that in a fraction of fractions the clusters of numerators and denominators are
"placed such that the second fraction reverses": in (a/b)/(c/d), c counts as a denominator and d as
a numerator. The label `side` has this reversal built in, so a high score of it is no evidence for
the reversal.

Here probes are fitted only at positions where the reversed and the unreversed label agree, and
applied where they disagree, in questions that they were not fitted on. Each prediction there is
either the reversed or the unreversed side. The share of reversed predictions is averaged over the
two sides, so that a constant prediction scores 50%. This is done with a linear probe, and with a
table of the side that is more typical of each cluster. Controls: untrained models, and probes that
see only the text. The latter tend to the unreversed side, because most characters after a "/" are
denominators where the labels agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tp_transformer.foundation.statistics import Interval, resample
from tp_transformer.interpret.core.arrays import Booleans, Floats, Integers
from tp_transformer.interpret.core.result import ResultTable, Values
from tp_transformer.interpret.core.structure import DENOMINATOR, NUMERATOR, SIDE
from tp_transformer.interpret.roles.positions import Positions
from tp_transformer.interpret.roles.probes import (
    FEWEST_QUESTIONS,
    Probe,
    folds,
)

# From vectors with their sides, and other vectors, to the predicted sides of the others.
Predictor = Callable[[Floats, Integers, Floats], Integers]

SIDES = (NUMERATOR, DENOMINATOR)
CHANCE = 0.5  # share of reversed predictions of a constant


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The positions that have a side, with both labels as indices into SIDES."""

    position: Integers  # (labelled,): index into all positions
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
        """Whether both labels are equal: (labelled,)."""
        return self.reversed == self.unreversed

    @property
    def obstacle(self) -> str | None:
        """The reason why the reversal cannot be tested, or None."""
        for where, name in ((self.agree, "agree"), (~self.agree, "disagree")):
            for number, side in enumerate(SIDES):
                n_questions = len(np.unique(self.question[where & (self.reversed == number)]))
                if n_questions < FEWEST_QUESTIONS:
                    return (
                        f"only {n_questions} questions have a {side} where reversed and "
                        f"unreversed sides {name}, and {FEWEST_QUESTIONS} are needed"
                    )
        return None


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The predictions of a probe that was fitted where the labels agree."""

    accuracy: float  # where they agree, on held-out questions, averaged over the two sides
    reversed_share: float  # where they disagree, averaged over the two sides
    interval: Interval  # 95% for that share, by bootstrap over questions


@dataclass(frozen=True, kw_only=True)
class HeadTransfer:
    """The predictions from the vectors and from the clusters of a head."""

    layer: int
    head: int
    probe: Transfer
    clusters: Transfer


KINDS = ("probe", "clusters")  # fields of HeadTransfer
REVERSED, LIKE_CONTROLS, UNCLEAR, UNREVERSED = (
    "reversed, more than in untrained models and text probes",
    "reversed, but not clearly more than in untrained models or text probes",
    "neither label is clearly followed",
    "not reversed",
)


@dataclass(frozen=True, kw_only=True)
class LayerTransfer:
    """The predictions of one kind of the best head of a layer, and the label that they follow.

    The best head is the one that is most accurate where the labels agree, which favours neither.
    """

    layer: int
    head: int
    kind: str
    transfer: Transfer
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """The share of reversed sides in every head and in the controls.

    Attributes:
        n_agreeing: number of positions where the labels agree
        n_disagreeing: number of positions where they disagree
        n_questions: number of questions with a position where they disagree
        obstacle: the reason why nothing was tested, or None
        heads: the heads of every layer; none if nothing was tested
        readers: the text probes, by the number of characters that they see on each side
        initial: for each untrained model, the heads of every layer
    """

    n_agreeing: int
    n_disagreeing: int
    n_questions: int
    obstacle: str | None
    heads: tuple[HeadTransfer, ...]
    readers: dict[int, Transfer]
    initial: tuple[tuple[HeadTransfer, ...], ...]

    @property
    def layers(self) -> list[LayerTransfer]:
        """The best probe and the best clusters of each layer."""
        found = []
        for layer in sorted({head.layer for head in self.heads}):
            for kind in KINDS:
                best = _best([head for head in self.heads if head.layer == layer], kind)
                transfer: Transfer = getattr(best, kind)
                found.append(
                    LayerTransfer(
                        layer=layer,
                        head=best.head,
                        kind=kind,
                        transfer=transfer,
                        verdict=self._verdict(transfer, kind),
                    )
                )
        return found

    def _verdict(self, transfer: Transfer, kind: str) -> str:
        """Return which label predictions follow, compared with untrained models and the text."""
        low, high = transfer.interval
        if high < CHANCE:
            return UNREVERSED
        if low <= CHANCE:
            return UNCLEAR
        controls = [*self._untrained(kind), *self.readers.values()]
        is_more = low > max(control.interval[1] for control in controls)
        return REVERSED if is_more else LIKE_CONTROLS

    def _untrained(self, kind: str) -> list[Transfer]:
        """Return the predictions of the best head of each untrained model."""
        return [getattr(_best(heads, kind), kind) for heads in self.initial]

    def summary(self) -> str:
        """Return what was found in one line."""
        if self.obstacle is not None:
            return f"reversal: not tested, because {self.obstacle}."
        found: dict[str, list[str]] = {}
        for one in self.layers:
            found.setdefault(one.verdict, []).append(f"{one.kind} of head {one.layer}.{one.head}")
        verdicts = "; ".join(f"{verdict}: {', '.join(own)}" for verdict, own in found.items())
        return (
            f"reversal: probes are fitted where the reversed and the unreversed side agree "
            f"({self.n_agreeing:,} positions) and applied where they disagree "
            f"({self.n_disagreeing:,} positions of {self.n_questions} questions). Sides, by the "
            f"head of each layer that is most accurate where they agree: {verdicts}."
        )

    def tables(self) -> list[ResultTable]:
        """Return the predictions of each layer and of the controls, if it was tested."""
        if self.obstacle is not None:
            return []
        reach = max(self.readers, key=lambda reach: self.readers[reach].accuracy)
        found = {f"{one.kind}, head {one.layer}.{one.head}": one.transfer for one in self.layers}
        for kind in KINDS:
            for number, control in enumerate(self._untrained(kind), 1):
                found[f"{kind}, untrained model {number}"] = control
        found[f"text, {reach} characters on each side"] = self.readers[reach]
        table = ResultTable(
            title="Reversed sides in a denominator's denominator",
            columns=("predicted from", "accuracy", "reversed", "95%"),
            rows=tuple(
                (
                    name,
                    f"{transfer.accuracy:.0%}",
                    f"{transfer.reversed_share:.0%}",
                    "{:.0f} to {:.0f}".format(*(100 * end for end in transfer.interval)),
                )
                for name, transfer in found.items()
            ),
            note="accuracy: where the reversed and the unreversed side agree. reversed: the share "
            "of reversed predictions where they disagree. Of each layer and of each untrained "
            "model, the head with the highest accuracy.",
        )
        return [table]

    def values(self) -> Values:
        """Return the numbers."""
        return {**vars(self), "layers": [vars(one) for one in self.layers]}


def _best(heads: Sequence[HeadTransfer], kind: str) -> HeadTransfer:
    def accuracy(head: HeadTransfer) -> float:
        transfer: Transfer = getattr(head, kind)
        return transfer.accuracy

    return max(heads, key=accuracy)


def by_probe(vectors: Floats, sides: Integers, others: Floats) -> Integers:
    """Predict sides by linear discriminant analysis."""
    return Probe(vectors, sides, len(SIDES))(others)


def by_cluster(clusters: Floats, sides: Integers, others: Floats) -> Integers:
    """Predict the side that is more typical of the cluster; clusters are one-hot vectors."""
    counts = clusters.T @ np.eye(len(SIDES))[sides]  # (cluster, side)
    # Shares of each side, so that the more frequent side has no advantage.
    shares = counts / np.maximum(1, counts.sum(axis=0))
    return shares.argmax(axis=1)[others.argmax(axis=1)]


def transfer(vectors: Floats, sides: Sides, seed: int, predict: Predictor = by_probe) -> Transfer:
    """Fit a predictor where the labels agree and apply it at all positions of other questions."""
    own, agree = vectors[sides.position], sides.agree
    fold = folds(sides.question, seed)
    predicted = np.empty_like(sides.reversed)
    for number in range(fold.max() + 1):
        out = fold == number
        fitted = ~out & agree
        predicted[out] = predict(own[fitted], sides.reversed[fitted], own[out])
    right = predicted == sides.reversed
    accuracy, _ = _balanced(right, agree, sides, seed)
    share, interval = _balanced(right, ~agree, sides, seed)
    return Transfer(accuracy=accuracy, reversed_share=share, interval=interval)


def _balanced(right: Booleans, where: Booleans, sides: Sides, seed: int) -> tuple[float, Interval]:
    """Return the accuracy averaged over the two sides, with its interval."""
    questions, which = np.unique(sides.question[where], return_inverse=True)
    cells = 2 * which + sides.reversed[where]
    counts = np.bincount(cells, minlength=2 * len(questions)).reshape(-1, 2)
    sums = np.bincount(cells, right[where], minlength=2 * len(questions)).reshape(-1, 2)

    def share(drawn: Integers) -> Floats:
        n = drawn @ counts
        # A side that is in no resampled question counts as 50%.
        shares = np.divide(drawn @ sums, n, out=np.full(n.shape, 0.5), where=n > 0)
        return shares.mean(axis=1)

    found = resample(len(questions), share, seed=seed)
    value = float(share(np.ones((1, len(questions)), np.int64))[0])
    return value, found or (0.0, 1.0)  # too few questions: anything is possible
