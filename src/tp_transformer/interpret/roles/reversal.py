"""Whether the sides of fractions reverse in a denominator's denominator (section 5.1).

In (a/b)/(c/d), c counts as a denominator and d as a numerator. The label `side` has this reversal
built in, so a high score of it is no evidence for the reversal. Here probes are fitted only at
positions where the reversed and the unreversed label agree, and applied where they disagree, in
questions that they were not fitted on. Each prediction there is either the reversed or the
unreversed side. The share of reversed predictions is averaged over the two sides, so that a
constant prediction scores 50%. This is done with a linear probe, and with a table of the side that
is more typical of each cluster. The result of a layer is the mean over its heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tp_transformer.interpret.core.record import Booleans, Floats, Integers
from tp_transformer.interpret.core.result import ResultTable, Values, in_words
from tp_transformer.interpret.core.structure import DENOMINATOR, NUMERATOR, SIDE
from tp_transformer.interpret.roles.probes import FEWEST_QUESTIONS, Positions, Probe, Scored, folds
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import Interval, resample

# From vectors with their sides, and other vectors, to the predicted sides of the others.
Predictor = Callable[[Floats, Integers, Floats], Integers]
HeadVectors = Mapping[tuple[int, int], Floats]  # by layer and head: a row for each position

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
class Transfer(Scored):
    """The predictions of probes that were fitted where the labels agree.

    Their accuracy is that where they agree, averaged over the two sides.
    """

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
    "unreversed",
)


@dataclass(frozen=True, kw_only=True)
class LayerTransfer:
    """The predictions of one kind, averaged over all heads of a layer, so that none is chosen."""

    layer: int  # its index
    kind: str  # one of KINDS
    transfer: Transfer  # the mean over heads
    n_heads: int  # the number of heads
    n_reversed: int  # heads whose interval lies above 50%
    n_unreversed: int  # heads whose interval lies below 50%

    def __str__(self) -> str:
        return f"{self.kind}, layer {self.layer}"


@dataclass(frozen=True, kw_only=True)
class ModelTransfer:
    """The predictions of the heads and layers of a model; none if nothing was tested."""

    heads: tuple[HeadTransfer, ...] = ()
    layers: tuple[LayerTransfer, ...] = ()

    def most_reversed(self, kind: str) -> LayerTransfer:
        """Return the layer with the largest share of reversed predictions of a kind."""
        layers = [layer for layer in self.layers if layer.kind == kind]
        return max(layers, key=lambda layer: layer.transfer.reversed_share)


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """The share of reversed sides in the model and in the controls."""

    n_agreeing: int  # positions where the labels agree
    n_disagreeing: int  # positions where they disagree
    n_questions: int  # questions with a position where they disagree
    obstacle: str | None  # the reason why nothing was tested
    model: ModelTransfer
    readers: dict[int, Transfer]  # text probes, by the characters that they see on each side
    initial: tuple[ModelTransfer, ...]  # of each untrained model

    def verdict(self, layer: LayerTransfer) -> str:
        """Return which label a layer follows, compared with untrained models and the text."""
        low, high = layer.transfer.interval
        if high < CHANCE:
            return UNREVERSED
        if low <= CHANCE:
            return UNCLEAR
        untrained = [model.most_reversed(layer.kind).transfer for model in self.initial]
        controls = [*untrained, *self.readers.values()]
        is_more = low > max(control.interval[1] for control in controls)
        return REVERSED if is_more else LIKE_CONTROLS

    def summary(self) -> str:
        """Return what was found in one line."""
        if self.obstacle is not None:
            return f"reversal: not tested, because {self.obstacle}."
        shares_of: dict[str, list[str]] = {}
        for layer in self.model.layers:
            share = f"{layer} ({layer.n_reversed} of {layer.n_heads} heads)"
            shares_of.setdefault(self.verdict(layer), []).append(share)
        verdicts = ". ".join(
            f"{verdict}: {'; '.join(shares)}" for verdict, shares in shares_of.items()
        )
        return (
            f"reversal: probes are fitted where the reversed and the unreversed side agree "
            f"({self.n_agreeing:,} positions) and applied where they disagree "
            f"({self.n_disagreeing:,} positions of {self.n_questions} questions). Means over the "
            f"heads of a layer, and in parentheses the heads that are clearly reversed: {verdicts}."
        )

    def tables(self) -> list[ResultTable]:
        if self.obstacle is not None:
            return []
        reach = max(self.readers, key=lambda reach: self.readers[reach].accuracy)
        rows = [_row(str(layer), layer.transfer, layer) for layer in self.model.layers]
        rows += [
            _row(f"{layer} of untrained model {number}", layer.transfer, layer)
            for kind in KINDS
            for number, model in enumerate(self.initial, 1)
            for layer in [model.most_reversed(kind)]
        ]
        rows.append(_row(f"text, {reach} characters on each side", self.readers[reach]))
        table = ResultTable(
            title="Reversed sides in a denominator's denominator",
            columns=("predicted from", "accuracy", "reversed", "95%", "above", "below"),
            rows=tuple(rows),
            note="accuracy: where the reversed and the unreversed side agree. reversed: the share "
            "of reversed predictions where they disagree. Both are means over the heads of a "
            "layer. above, below: the number of heads whose 95% interval lies above or below 50%. "
            "Of each untrained model, the layer with the largest share.",
        )
        return [table]

    def values(self) -> Values:
        layers = [{**vars(layer), "verdict": self.verdict(layer)} for layer in self.model.layers]
        return {**vars(self), "model": {"heads": self.model.heads, "layers": layers}}


def _row(name: str, transfer: Transfer, layer: LayerTransfer | None = None) -> tuple[str, ...]:
    return (
        name,
        f"{transfer.accuracy:.0%}",
        f"{transfer.reversed_share:.0%}",
        in_words(transfer.interval, ".0f", 100),
        *(("", "") if layer is None else (f"{layer.n_reversed}", f"{layer.n_unreversed}")),
    )


def by_probe(vectors: Floats, sides: Integers, others: Floats) -> Integers:
    """Predict sides by linear discriminant analysis."""
    return Probe(vectors, sides, len(SIDES))(others)


def by_cluster(clusters: Floats, sides: Integers, others: Floats) -> Integers:
    """Predict the side that is more typical of the cluster; clusters are one-hot vectors."""
    counts = clusters.T @ np.eye(len(SIDES))[sides]  # (cluster, side)
    # Shares of each side, so that the more frequent side has no advantage.
    shares = counts / np.maximum(1, counts.sum(axis=0))
    return shares.argmax(axis=1)[others.argmax(axis=1)]


def model_transfer(
    vectors: HeadVectors, clusters: HeadVectors, sides: Sides, seed: int
) -> ModelTransfer:
    """Fit and apply predictors in every head, to its vectors and to its one-hot clusters."""
    if sides.obstacle is not None:
        return ModelTransfer()
    hits = {
        place: {
            "probe": are_reversed(vectors[place], sides, seed),
            "clusters": are_reversed(clusters[place], sides, seed, by_cluster),
        }
        for place in track("testing the reversal", vectors)
    }
    heads = tuple(
        HeadTransfer(
            layer=layer,
            head=head,
            **{kind: _transfer(hits_of[kind], sides, seed) for kind in KINDS},
        )
        for (layer, head), hits_of in hits.items()
    )
    layers = []
    for layer in sorted({layer for layer, _ in hits}):
        for kind in KINDS:
            mean = np.mean(
                [hits_of[kind] for (of, _), hits_of in hits.items() if of == layer], axis=0
            )
            intervals = [getattr(head, kind).interval for head in heads if head.layer == layer]
            layers.append(
                LayerTransfer(
                    layer=layer,
                    kind=kind,
                    transfer=_transfer(mean, sides, seed),
                    n_heads=len(intervals),
                    n_reversed=sum(low > CHANCE for low, _ in intervals),
                    n_unreversed=sum(high < CHANCE for _, high in intervals),
                )
            )
    return ModelTransfer(heads=heads, layers=tuple(layers))


def transfer(vectors: Floats, sides: Sides, seed: int, predict: Predictor = by_probe) -> Transfer:
    """Fit a predictor where the labels agree and apply it at all positions of other questions."""
    return _transfer(are_reversed(vectors, sides, seed, predict), sides, seed)


def are_reversed(
    vectors: Floats, sides: Sides, seed: int, predict: Predictor = by_probe
) -> Booleans:
    """Return whether the prediction for each labelled position is its reversed side."""
    labelled, agree = vectors[sides.position], sides.agree
    fold = folds(sides.question, seed)
    predicted = np.empty_like(sides.reversed)
    for number in range(fold.max() + 1):
        out = fold == number
        fitted = ~out & agree
        predicted[out] = predict(labelled[fitted], sides.reversed[fitted], labelled[out])
    return predicted == sides.reversed


def _transfer(hits: Booleans | Floats, sides: Sides, seed: int) -> Transfer:
    """Summarise predictions, or the share of reversed predictions at each labelled position."""
    accuracy, _ = _balanced(hits, sides.agree, sides, seed)
    share, interval = _balanced(hits, ~sides.agree, sides, seed)
    return Transfer(accuracy=accuracy, reversed_share=share, interval=interval)


def _balanced(
    hits: Booleans | Floats, where: Booleans, sides: Sides, seed: int
) -> tuple[float, Interval]:
    """Return the share of hits averaged over the two sides, with its interval."""
    questions, which = np.unique(sides.question[where], return_inverse=True)
    cells = 2 * which + sides.reversed[where]
    counts = np.bincount(cells, minlength=2 * len(questions)).reshape(-1, 2)
    sums = np.bincount(cells, hits[where], minlength=2 * len(questions)).reshape(-1, 2)

    def share(drawn: Integers) -> Floats:
        n = drawn @ counts
        # A side that is in no resampled question counts as 50%.
        shares = np.divide(drawn @ sums, n, out=np.full(n.shape, 0.5), where=n > 0)
        return shares.mean(axis=1)

    interval = resample(len(questions), share, seed=seed)
    value = float(share(np.ones((1, len(questions)), np.int64))[0])
    return value, interval or (0.0, 1.0)  # too few questions: anything is possible
