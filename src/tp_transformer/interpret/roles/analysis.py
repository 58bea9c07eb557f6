"""Clusters of role vectors and the structure in them (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. The paper's reading of
the clusters was "discovered manually"; here each question is parsed, and the labels of its
characters are compared with the clusters and with the vectors themselves, for every head of every
layer. Controls: untrained models, and probes that see only the text. Attention without roles is
analysed by its value vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.progress import track
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import ENCODER, checked_model, point, record, untrained
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.core.vectors import Clustering, Floats, cluster
from tp_transformer.interpret.options import RolesOptions
from tp_transformer.interpret.roles import naming, probes, reversal
from tp_transformer.interpret.roles.probes import Labelled, Positions, Probed
from tp_transformer.interpret.roles.result import (
    HeadClusters,
    HeadScore,
    LabelControls,
    RolesResult,
)
from tp_transformer.interpret.roles.reversal import ModelTransfer, Reversal, Sides, Transfer
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

T = TypeVar("T")
Heads = dict[tuple[int, int], T]  # by layer and head

INITIAL_DRAWS = 3  # untrained models


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What trained and untrained models are analysed with."""

    sample: Sample
    positions: Positions
    labelled: list[Labelled]
    sides: Sides
    points: list[str]  # the trace point of each layer
    layer: int
    heads: list[int]  # whose clusters are named
    n_clusters: int
    seed: int

    def vectors(self, model: Transformer) -> Heads[Floats]:
        """Return the vectors of all heads: (position, d_head)."""
        recorded = record(model, self.sample, self.points)
        found = [recorded.flat(name).astype(np.float64) for name in self.points]
        return {
            (layer, head): own[:, head]
            for layer, own in enumerate(found)
            for head in range(own.shape[1])
        }

    def cluster(self, vectors: Floats) -> Clustering:
        """Cluster the vectors of one head."""
        return cluster(vectors, self.n_clusters, self.seed)

    def named(self, clusterings: Heads[Clustering]) -> tuple[HeadClusters, ...]:
        """Name the clusters of the chosen heads."""
        own = {head: clusterings[self.layer, head] for head in self.heads}
        return _named(own, self.positions, self.n_clusters)


@dataclass(frozen=True, kw_only=True)
class _Untrained:
    """The findings in one untrained model."""

    n_structural: int  # names that say more than the character
    best: dict[str, Probed]  # for each label, of all heads
    reversal: ModelTransfer


def analyse(model: AnyModel, sample: Sample, options: RolesOptions, seed: int) -> RolesResult:
    """Cluster the roles of a layer, and score every head of every layer.

    The paper uses 128 questions of arithmetic__mixed, the last encoder layer and 20 clusters. With
    `vectors="value"` a TP-Transformer can be compared with a Transformer.
    """
    model = checked_model(model, options)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    available = _available(model)
    vectors = options.vectors or available[0]
    if vectors not in available:
        raise SettingsError(
            f"the model has no vectors {vectors!r} to cluster; it has {' and '.join(available)}"
        )
    positions = Positions.of(sample)
    inputs = _Inputs(
        sample=sample,
        positions=positions,
        labelled=[
            Labelled.of(name, values, positions.question)
            for name, values in positions.labels.items()
        ],
        sides=Sides.of(positions),
        points=[point(ENCODER, layer, vectors) for layer in range(n_layers)],
        layer=layer_index(options.layer, n_layers),
        heads=head_indices(options.head, n_heads),
        n_clusters=options.clusters,
        seed=seed,
    )
    found = inputs.vectors(model)
    clusterings = {
        place: inputs.cluster(own) for place, own in track("clustering heads", found.items())
    }
    controls = [_control(untrained(model, seed + draw), inputs) for draw in range(INITIAL_DRAWS)]
    return RolesResult(
        context=Context.of(model, sample, seed),
        vectors=vectors,
        layer=inputs.layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=options.clusters,
        n_parsed=sum(expression is not None for expression in sample.expressions),
        heads=inputs.named(clusterings),
        initial_structural=tuple(control.n_structural for control in controls),
        labels=tuple(
            _label_controls(label, inputs, controls)
            for label in track("probing the text", inputs.labelled)
        ),
        scores=tuple(_scores(found, clusterings, inputs)),
        reversal=_reversal(found, clusterings, inputs, controls),
    )


def layer_clusters(
    model: Transformer, sample: Sample, *, n_clusters: int, seed: int
) -> tuple[HeadClusters, ...]:
    """Cluster the roles of each head of the last encoder layer; name them, without controls.

    In a model without roles, its value vectors are clustered.
    """
    name = point(ENCODER, model.config.n_layers - 1, _available(model)[0])
    vectors = record(model, sample, [name]).flat(name).astype(np.float64)
    clusterings = {
        head: cluster(vectors[:, head], n_clusters, seed) for head in range(vectors.shape[1])
    }
    return _named(clusterings, Positions.of(sample), n_clusters)


def _available(model: Transformer) -> tuple[str, ...]:
    """Return the names of the vectors that can be clustered, the default first."""
    return ("role", "value") if model.config.d_role else ("value",)


def _named(
    clusterings: dict[int, Clustering], positions: Positions, n_clusters: int
) -> tuple[HeadClusters, ...]:
    """Name the clusters of some heads."""
    said = naming.statements(positions.characters, positions.labels)
    return tuple(
        HeadClusters(
            head=head,
            assigned=positions.split(clustering.assigned),
            centroids=clustering.centroids,
            names=naming.names(
                clustering.assigned, n_clusters, said, positions.question, len(clusterings)
            ),
        )
        for head, clustering in clusterings.items()
    )


def _control(model: Transformer, inputs: _Inputs) -> _Untrained:
    """Analyse an untrained model; its best head is chosen among as many as the trained model's."""
    found = inputs.vectors(model)
    clusterings = {place: inputs.cluster(own) for place, own in found.items()}
    probed: dict[str, list[Probed]] = {
        label.name: [] for label in inputs.labelled if label.obstacle is None
    }
    for head in track("probing an untrained model", found.values()):
        for label in inputs.labelled:
            if label.obstacle is None:
                probed[label.name].append(
                    probes.probe(head, label, inputs.seed, n_permutations=1, n_compared=len(found))
                )
    return _Untrained(
        n_structural=sum(head.n_structural for head in inputs.named(clusterings)),
        best={name: max(own, key=lambda found: found.accuracy) for name, own in probed.items()},
        reversal=_transfer(found, clusterings, inputs),
    )


def _transfer(
    found: Heads[Floats], clusterings: Heads[Clustering], inputs: _Inputs
) -> ModelTransfer:
    """Test the reversal in the vectors and clusters of every head."""
    one_hot = np.eye(inputs.n_clusters)
    clusters = {place: one_hot[own.assigned] for place, own in clusterings.items()}
    return reversal.model_transfer(found, clusters, inputs.sides, inputs.seed)


def _scores(
    found: Heads[Floats], clusterings: Heads[Clustering], inputs: _Inputs
) -> Iterator[HeadScore]:
    """Score every head of every layer for every label."""
    for (layer, head), own in track("probing heads", found.items()):
        assigned = clusterings[layer, head].assigned
        for label in inputs.labelled:
            information, probed = None, None
            if label.obstacle is None:
                information = probes.information(assigned, label, inputs.n_clusters, inputs.seed)
                probed = probes.probe(own, label, inputs.seed, n_compared=len(found))
            yield HeadScore(
                layer=layer, head=head, label=label.name, information=information, probe=probed
            )


def _reversal(
    found: Heads[Floats],
    clusterings: Heads[Clustering],
    inputs: _Inputs,
    controls: list[_Untrained],
) -> Reversal:
    """Test the reversal in every head, and from the text."""
    sides, positions = inputs.sides, inputs.positions
    readers: dict[int, Transfer] = {}
    if sides.obstacle is None:
        readers = probes.widen(
            lambda reach: reversal.transfer(
                positions.character_features(reach), sides, inputs.seed
            ),
            positions.longest,
        )
    return Reversal(
        n_agreeing=int(sides.agree.sum()),
        n_disagreeing=int((~sides.agree).sum()),
        n_questions=len(np.unique(sides.question[~sides.agree])),
        obstacle=sides.obstacle,
        model=_transfer(found, clusterings, inputs),
        readers=readers,
        initial=tuple(model.reversal for model in controls),
    )


def _label_controls(label: Labelled, inputs: _Inputs, controls: list[_Untrained]) -> LabelControls:
    positions, seed = inputs.positions, inputs.seed
    readers: dict[int, Probed] = {}
    characters = None
    if label.obstacle is None:
        readers = probes.widen(
            lambda reach: probes.probe(
                positions.character_features(reach), label, seed, n_permutations=1
            ),
            positions.longest,
        )
        alphabet, own = np.unique(list(positions.characters), return_inverse=True)
        characters = probes.information(own, label, len(alphabet), seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelControls(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        readers=readers,
        initial=tuple(model.best[label.name] for model in controls if label.name in model.best),
        characters=characters,
    )
