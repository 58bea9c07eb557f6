"""Clusters of role vectors and the structure in them (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. The paper's reading of
the clusters was "discovered manually"; here each question is parsed, and the labels of its
characters are compared with the clusters and with the vectors themselves, for every head of every
layer. Controls: untrained models, and probes that see only the text. Attention without roles is
analysed by its value vectors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.options import head_indices, layer_index
from tp_transformer.interpret.core.record import ENCODER, checked_model, point, record, untrained
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.core.vectors import Clustering, Floats, cluster
from tp_transformer.interpret.options import RolesOptions
from tp_transformer.interpret.roles import naming, probes, reversal
from tp_transformer.interpret.roles.probes import Labelled, Positions, Probed, Scored
from tp_transformer.interpret.roles.result import (
    HeadClusters,
    HeadScore,
    LabelControls,
    RolesResult,
)
from tp_transformer.interpret.roles.reversal import ModelTransfer, Reversal, Sides, Transfer
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track

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

    def text_probes(self, score: Callable[[Floats], Scored]) -> dict[int, Scored]:
        """Score probes of the text alone, by the number of characters that they see."""
        positions = self.positions
        return probes.widen(
            lambda reach: score(positions.character_features(reach)), positions.longest
        )


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """The vectors and the clusters of all heads of a model, by layer and head."""

    inputs: _Inputs
    vectors: dict[tuple[int, int], Floats]  # (position, d_head)
    clusterings: dict[tuple[int, int], Clustering]

    @classmethod
    def of(cls, model: Transformer, inputs: _Inputs) -> "_Heads":
        recorded = record(model, inputs.sample, inputs.points)
        layers = [recorded.flat(name).astype(np.float64) for name in inputs.points]
        vectors = {
            (layer, head): flat[:, head]
            for layer, flat in enumerate(layers)
            for head in range(flat.shape[1])
        }
        clusterings = {
            place: cluster(head, inputs.n_clusters, inputs.seed)
            for place, head in track("clustering heads", vectors.items())
        }
        return cls(inputs=inputs, vectors=vectors, clusterings=clusterings)

    def named(self) -> tuple[HeadClusters, ...]:
        """Name the clusters of the chosen heads."""
        layer, positions = self.inputs.layer, self.inputs.positions
        chosen = {head: self.clusterings[layer, head] for head in self.inputs.heads}
        return _named(chosen, positions, self.inputs.n_clusters)

    def transfer(self) -> ModelTransfer:
        """Test the reversal in the vectors and clusters of every head."""
        one_hot = np.eye(self.inputs.n_clusters)
        clusters = {
            place: one_hot[clustering.assigned] for place, clustering in self.clusterings.items()
        }
        return reversal.model_transfer(self.vectors, clusters, self.inputs.sides, self.inputs.seed)

    def probe(self, place: tuple[int, int], label: Labelled, n_permutations: int) -> Probed:
        """Probe one head; the best is chosen among as many in trained and untrained models."""
        return probes.probe(
            self.vectors[place],
            label,
            self.inputs.seed,
            n_permutations=n_permutations,
            n_compared=len(self.vectors),
        )

    def scores(self) -> Iterator[HeadScore]:
        """Score every head of every layer for every label."""
        inputs = self.inputs
        for layer, head in track("probing heads", self.vectors):
            assigned = self.clusterings[layer, head].assigned
            for label in inputs.labelled:
                information, probed = None, None
                if label.obstacle is None:
                    information = probes.information(
                        assigned, label, inputs.n_clusters, inputs.seed
                    )
                    probed = self.probe((layer, head), label, probes.PROBE_PERMUTATIONS)
                yield HeadScore(
                    layer=layer, head=head, label=label.name, information=information, probe=probed
                )


@dataclass(frozen=True, kw_only=True)
class _Untrained:
    """The findings in one untrained model."""

    n_structural: int  # names that say more than the character
    best: dict[str, Probed]  # for each label, of all heads
    reversal: ModelTransfer

    @classmethod
    def of(cls, model: Transformer, inputs: _Inputs) -> "_Untrained":
        heads = _Heads.of(model, inputs)
        scored = [label for label in inputs.labelled if label.obstacle is None]
        probed: dict[str, list[Probed]] = {label.name: [] for label in scored}
        for place in track("probing an untrained model", heads.vectors):
            for label in scored:
                probed[label.name].append(heads.probe(place, label, n_permutations=1))
        return cls(
            n_structural=sum(head.n_structural for head in heads.named()),
            best={
                name: max(results, key=lambda result: result.accuracy)
                for name, results in probed.items()
            },
            reversal=heads.transfer(),
        )


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
    heads = _Heads.of(model, inputs)
    controls = [
        _Untrained.of(untrained(model, seed + draw), inputs) for draw in range(INITIAL_DRAWS)
    ]
    return RolesResult(
        context=Context.of(model, sample, seed),
        vectors=vectors,
        layer=inputs.layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=options.clusters,
        n_parsed=sum(expression is not None for expression in sample.expressions),
        heads=heads.named(),
        initial_structural=tuple(control.n_structural for control in controls),
        labels=tuple(
            _label_controls(label, inputs, controls)
            for label in track("probing the text", inputs.labelled)
        ),
        scores=tuple(heads.scores()),
        reversal=_reversal(heads, controls),
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


def _reversal(heads: _Heads, controls: list[_Untrained]) -> Reversal:
    """Test the reversal in every head, and from the text."""
    inputs, sides = heads.inputs, heads.inputs.sides
    readers: dict[int, Transfer] = {}
    if sides.obstacle is None:
        readers = inputs.text_probes(lambda text: reversal.transfer(text, sides, inputs.seed))
    return Reversal(
        n_agreeing=int(sides.agree.sum()),
        n_disagreeing=int((~sides.agree).sum()),
        n_questions=len(np.unique(sides.question[~sides.agree])),
        obstacle=sides.obstacle,
        model=heads.transfer(),
        readers=readers,
        initial=tuple(control.reversal for control in controls),
    )


def _label_controls(label: Labelled, inputs: _Inputs, controls: list[_Untrained]) -> LabelControls:
    readers: dict[int, Probed] = {}
    characters = None
    if label.obstacle is None:
        seed = inputs.seed
        readers = inputs.text_probes(lambda text: probes.probe(text, label, seed, n_permutations=1))
        alphabet, index = np.unique(list(inputs.positions.characters), return_inverse=True)
        characters = probes.information(index, label, len(alphabet), seed)
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
