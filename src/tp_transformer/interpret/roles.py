"""Which roles a layer's heads have learned (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. Where the paper's reading
of the clusters was "discovered manually", here each question is parsed, and what its characters are
in the expression is compared with the clusters and with the vectors themselves, for every head of
every layer. Attention without roles is analysed in its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret import naming, probes
from tp_transformer.interpret.expressions import Expression, parse
from tp_transformer.interpret.outcome import Context, Values, write
from tp_transformer.interpret.probes import Information, Labelled, Probed
from tp_transformer.interpret.record import Sample, record, symbols
from tp_transformer.interpret.structure import LABELS, labels
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

Integers = npt.NDArray[np.int64]

STARTS = 10  # of k-means; the best is kept
NEIGHBOURS = 2  # characters on each side that the second control sees
CHARACTER = "character and position"
WITH_NEIGHBOURS = f"the same and {NEIGHBOURS} neighbours on each side"


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Vectors in clusters, which are numbered along the centroids' first principal direction.

    So clusters with near numbers tend to be alike, and so may be their colours.
    """

    assigned: Integers  # (vector,)
    centroids: npt.NDArray[np.float64]  # (cluster, d_head)


@dataclass(frozen=True, kw_only=True)
class HeadRoles:
    """The clusters of a head: of each position of each question, and their names."""

    head: int
    assigned: tuple[Integers, ...]
    names: tuple[naming.Name | None, ...]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well one head tells one label; None where that cannot be said."""

    layer: int
    head: int
    label: str
    information: Information | None
    probe: Probed | None


@dataclass(frozen=True, kw_only=True)
class LabelSummary:
    """A label in the sample, and what can be told of it without a model."""

    name: str
    classes: dict[str, int]  # how many positions have it
    n_left_out: int  # positions whose label is too rare
    obstacle: str | None  # why it cannot be scored
    controls: dict[str, Probed]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The clusters of a layer, and the structure in every head of every layer."""

    vectors: str  # role, or value where there are no roles
    layer: int
    n_layers: int
    n_heads: int
    n_clusters: int
    questions: tuple[str, ...]
    n_parsed: int  # questions with an expression
    heads: tuple[HeadRoles, ...]
    labels: tuple[LabelSummary, ...]
    scores: tuple[Score, ...]

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
            "heads": [
                {
                    "head": one.head,
                    "assigned": list(one.assigned),
                    "names": [_name_values(name) for name in one.names],
                }
                for one in self.heads
            ],
            "labels": [_plain(one) for one in self.labels],
            "scores": [_plain(one) for one in self.scores],
        }


def _plain(one: LabelSummary | Score) -> Values:
    from dataclasses import asdict

    return asdict(one)


def _name_values(name: naming.Name | None) -> Values | None:
    if name is None:
        return None
    return {
        "name": str(name),
        "purity": name.purity,
        "n_positions": name.n_positions,
        "n_questions": name.n_questions,
    }


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Every position of a sample's questions, one after another."""

    questions: tuple[str, ...]
    expressions: tuple[Expression | None, ...]
    question: Integers  # (position,): of which question
    characters: str
    labels: dict[str, list[str | None]]

    @classmethod
    def of(cls, questions: Sequence[str]) -> "Positions":
        """Parse the questions; where there is no expression there are no labels."""
        expressions = tuple(map(parse, questions))
        found: dict[str, list[str | None]] = {name: [] for name in LABELS}
        for question, expression in zip(questions, expressions, strict=True):
            own = None if expression is None else labels(expression)
            for name in LABELS:
                found[name] += [None] * len(symbols(question)) if own is None else own[name]
        lengths = [len(symbols(question)) for question in questions]
        return cls(
            questions=tuple(questions),
            expressions=expressions,
            question=np.repeat(np.arange(len(questions)), lengths),
            characters="".join(map(symbols, questions)),
            labels=found,
        )

    def split(self, values: Integers) -> tuple[Integers, ...]:
        """The values of all positions, question by question."""
        return tuple(np.split(values, np.flatnonzero(np.diff(self.question)) + 1))


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    layer: int = -1,
    head: int | None = None,
    clusters: int = 20,
    seed: int = 0,
) -> Roles:
    """Cluster the roles of a layer's heads, or of one; score every head of every layer.

    The paper has 128 questions of arithmetic__mixed, the last encoder layer and 20 clusters.
    """
    if not isinstance(model, Transformer):
        raise UserError(
            "roles are read from attention, which an LSTM has not: choose another model"
        )
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    layer, own_heads = chosen_layer(layer, n_layers), chosen_heads(head, n_heads)
    vectors = "value" if model.config.binding == "none" else "role"
    names = [f"encoder.{number}.self_attention.{vectors}" for number in range(n_layers)]
    found = record(model, sample, names)
    positions = Positions.of(sample.questions)
    labelled = [Labelled.of(name, positions.labels[name], positions.question) for name in LABELS]
    said = naming.statements(positions.characters, positions.labels)

    scores: list[Score] = []
    heads: list[HeadRoles] = []
    for number, name in enumerate(names):
        flat = found.flat(name).astype(np.float64)
        for one in range(n_heads):
            clustering = cluster(flat[:, one], clusters, seed)
            for label in labelled:
                scores.append(_score(number, one, flat[:, one], clustering, label, seed))
            if number == layer and one in own_heads:
                assigned = clustering.assigned
                heads.append(
                    HeadRoles(
                        head=one,
                        assigned=positions.split(assigned),
                        names=naming.names(assigned, clusters, said, positions.question),
                    )
                )
    return Roles(
        vectors=vectors,
        layer=layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=clusters,
        questions=sample.questions,
        n_parsed=sum(one is not None for one in positions.expressions),
        heads=tuple(heads),
        labels=tuple(_summary(label, positions, seed) for label in labelled),
        scores=tuple(scores),
    )


def chosen_layer(layer: int, n_layers: int) -> int:
    """A layer's number; negative ones count from the last."""
    if not -n_layers <= layer < n_layers:
        raise SettingsError(f"the model has layers 0 to {n_layers - 1}, not {layer}")
    return layer % n_layers


def chosen_heads(head: int | None, n_heads: int) -> list[int]:
    """One head, or every head."""
    if head is None:
        return list(range(n_heads))
    if not 0 <= head < n_heads:
        raise SettingsError(f"the model has heads 0 to {n_heads - 1}, not {head}")
    return [head]


def cluster(vectors: npt.NDArray[np.float64], n_clusters: int, seed: int) -> Clustering:
    """Seeded k-means by scikit-learn."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise UserError(
            "clusters need scikit-learn: pip install 'tp-transformer[interpret]'"
        ) from error
    n_distinct = len(np.unique(vectors, axis=0))
    if not 1 <= n_clusters <= n_distinct:
        raise SettingsError(
            f"{n_clusters} clusters cannot be made of {n_distinct} different vectors: "
            "ask for fewer, or give more questions"
        )
    found = KMeans(n_clusters, n_init=STARTS, random_state=seed).fit(vectors)
    centred = found.cluster_centers_ - found.cluster_centers_.mean(axis=0)
    direction = np.linalg.svd(centred, full_matrices=False)[2][0]
    direction *= np.sign(direction[np.abs(direction).argmax()])
    order = np.argsort(centred @ direction, kind="stable")
    return Clustering(
        assigned=np.argsort(order)[found.labels_].astype(np.int64),
        centroids=found.cluster_centers_[order],
    )


def _score(
    layer: int,
    head: int,
    vectors: npt.NDArray[np.float64],
    clustering: Clustering,
    label: Labelled,
    seed: int,
) -> Score:
    scored = label.obstacle is None
    n_clusters = len(clustering.centroids)
    return Score(
        layer=layer,
        head=head,
        label=label.name,
        information=probes.information(clustering.assigned, label, n_clusters, seed)
        if scored
        else None,
        probe=probes.probe(vectors, label, seed) if scored else None,
    )


def _summary(label: Labelled, positions: Positions, seed: int) -> LabelSummary:
    controls = {}
    if label.obstacle is None:
        for name, reach in ((CHARACTER, 0), (WITH_NEIGHBOURS, NEIGHBOURS)):
            controls[name] = probes.probe(character_features(positions, reach), label, seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelSummary(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        controls=controls,
    )


def character_features(positions: Positions, reach: int) -> npt.NDArray[np.float64]:
    """What a probe can know without a model: a position's number, its character, its neighbours'.

    Each is one-hot. Beyond a question's ends the neighbour is none.
    """
    alphabet = sorted(set(positions.characters))
    number = {character: i + 1 for i, character in enumerate(alphabet)}
    rows = []
    for question in positions.questions:
        ids = [number[character] for character in symbols(question)]
        padded = np.pad(ids, reach)
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
        rows.append(np.column_stack([windows, np.arange(len(ids))]))
    columns = np.concatenate(rows).T
    return np.concatenate([np.eye(column.max() + 1)[column] for column in columns], axis=1)
