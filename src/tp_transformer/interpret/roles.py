"""Which roles a layer's heads have learned (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. Where the paper's reading
of the clusters was "discovered manually", here each question is parsed, and what its characters are
in the expression is compared with the clusters and with the vectors themselves, for every head of
every layer. Attention without roles is analysed in its values.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import SettingsError
from tp_transformer.interpret import naming, probes, roles_figure
from tp_transformer.interpret.choices import chosen_heads
from tp_transformer.interpret.clusters import Clustering, cluster
from tp_transformer.interpret.outcome import Context, write
from tp_transformer.interpret.positions import Positions
from tp_transformer.interpret.probes import Labelled
from tp_transformer.interpret.record import (
    Sample,
    chosen_layer,
    fresh,
    record,
    transformer_of,
)
from tp_transformer.interpret.roles_result import (
    READERS,
    ROLE,
    VALUE,
    HeadRoles,
    LabelSummary,
    Roles,
    Score,
)
from tp_transformer.interpret.structure import LABELS
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    layer: int = -1,
    head: int | None = None,
    clusters: int = 20,
    vectors: str | None = None,
    seed: int = 0,
) -> Roles:
    """Cluster the roles of a layer's heads, or of one; score every head of every layer.

    The paper has 128 questions of arithmetic__mixed, the last encoder layer and 20 clusters. The
    vectors are the roles where there are any, otherwise the values; `vectors="value"` reads a
    TP-Transformer in its values, too, to be compared with a Transformer's.
    """
    model = transformer_of(model)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    layer, own_heads = chosen_layer(model, layer), chosen_heads(head, n_heads)
    vectors = _chosen_vectors(vectors, has_roles=model.config.binding != "none")
    names = [f"encoder.{number}.self_attention.{vectors}" for number in range(n_layers)]
    found = record(model, sample, names)
    positions = Positions.of(sample.questions)
    labelled = [Labelled.of(name, positions.labels[name], positions.question) for name in LABELS]
    scores: list[Score] = []
    heads: tuple[HeadRoles, ...] = ()
    for number, name in enumerate(names):
        flat = found.flat(name).astype(np.float64)  # (position, head, d_head)
        clusterings = [cluster(flat[:, one], clusters, seed) for one in range(n_heads)]
        scores += [
            _score(number, one, flat[:, one], clusterings[one], label, n_layers * n_heads, seed)
            for one in range(n_heads)
            for label in labelled
        ]
        if number == layer:
            heads = _named([(one, clusterings[one]) for one in own_heads], positions, clusters)
    return Roles(
        seed=seed,
        vectors=vectors,
        layer=layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=clusters,
        questions=sample.questions,
        n_parsed=sum(one is not None for one in positions.expressions),
        heads=heads,
        initial_structural=_initial_structural(
            fresh(model, seed), sample, names[layer], own_heads, positions, clusters, seed
        ),
        labels=tuple(_summary(label, positions, seed) for label in labelled),
        scores=tuple(scores),
    )


def _named(
    clusterings: list[tuple[int, Clustering]], positions: Positions, n_clusters: int
) -> tuple[HeadRoles, ...]:
    """The clusters of some heads with their names."""
    said = naming.statements(positions.characters, positions.labels)
    return tuple(
        HeadRoles(
            head=head,
            assigned=positions.split(one.assigned),
            names=naming.names(
                one.assigned, n_clusters, said, positions.question, len(clusterings)
            ),
        )
        for head, one in clusterings
    )


def _initial_structural(
    initial: Transformer,
    sample: Sample,
    name: str,
    heads: list[int],
    positions: Positions,
    n_clusters: int,
    seed: int,
) -> int:
    """How many names say more than the character where nothing was learned."""
    flat = record(initial, sample, [name]).flat(name).astype(np.float64)
    clusterings = [(one, cluster(flat[:, one], n_clusters, seed)) for one in heads]
    named = _named(clusterings, positions, n_clusters)
    return sum(one.is_structural for head in named for one in head.names if one is not None)


def _chosen_vectors(vectors: str | None, *, has_roles: bool) -> str:
    if vectors is None:
        return ROLE if has_roles else VALUE
    if vectors not in {ROLE, VALUE} or (vectors == ROLE and not has_roles):
        there = f"{ROLE} and {VALUE}" if has_roles else VALUE
        raise SettingsError(f"the model has no vectors {vectors!r} to cluster; it has {there}")
    return vectors


def _score(
    layer: int,
    head: int,
    vectors: npt.NDArray[np.float64],
    clustering: Clustering,
    label: Labelled,
    n_compared: int,
    seed: int,
) -> Score:
    information, told = None, None
    if label.obstacle is None:
        n_clusters = len(clustering.centroids)
        information = probes.information(clustering.assigned, label, n_clusters, seed)
        told = probes.probe(vectors, label, seed, n_compared=n_compared)
    return Score(layer=layer, head=head, label=label.name, information=information, probe=told)


def _summary(label: Labelled, positions: Positions, seed: int) -> LabelSummary:
    controls, characters = {}, None
    if label.obstacle is None:
        for name, reach in READERS.items():
            features = positions.character_features(reach)
            controls[name] = probes.probe(features, label, seed, n_deals=1)
        alphabet, own = np.unique(list(positions.characters), return_inverse=True)
        characters = probes.information(own, label, len(alphabet), seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelSummary(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        controls=controls,
        characters=characters,
    )


def save(roles: Roles, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the figures; returns the files."""
    path = write(folder, "roles", roles.to_values(), context)
    return [path, *roles_figure.draw(roles, context, Path(folder))]
