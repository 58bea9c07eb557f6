"""Which roles a layer's heads have learned (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. Where the paper's reading
of the clusters was "discovered manually", here each question is parsed, and what its characters are
in the expression is compared with the clusters and with the vectors themselves, for every head of
every layer, beside models with initial weights and beside readers of the text alone. Attention
without roles is analysed in its values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import SettingsError
from tp_transformer.interpret import naming, probes, reversal, roles_figure
from tp_transformer.interpret.choices import chosen_heads
from tp_transformer.interpret.clusters import Clustering, cluster
from tp_transformer.interpret.outcome import Context, write
from tp_transformer.interpret.positions import Positions
from tp_transformer.interpret.probes import Labelled, Probed
from tp_transformer.interpret.record import (
    Sample,
    chosen_layer,
    fresh,
    record,
    transformer_of,
)
from tp_transformer.interpret.reversal import HeadTransfer, Reversal, Sides, Transfer
from tp_transformer.interpret.roles_result import (
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

Floats = npt.NDArray[np.float64]

INITIAL_DRAWS = 3  # of initial weights


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked of a trained model and of untrained ones alike."""

    sample: Sample
    positions: Positions
    labelled: list[Labelled]
    sides: Sides
    names: list[str]  # of the points, layer by layer
    layer: int
    heads: list[int]  # whose clusters get names
    n_clusters: int
    seed: int

    def vectors(self, model: Transformer) -> Floats:
        """The vectors of all heads: (layer, position, head, d_head)."""
        found = record(model, self.sample, self.names)
        return np.stack([found.flat(name).astype(np.float64) for name in self.names])

    def cluster(self, vectors: Floats) -> Clustering:
        """The clusters of one head's vectors."""
        return cluster(vectors, self.n_clusters, self.seed)


@dataclass(frozen=True, kw_only=True)
class Initial:
    """What is found where nothing was learned."""

    n_structural: int  # names that say more than the character
    best: dict[str, Probed]  # by label, of all heads
    reversal: Transfer | None  # of the head that tells sides best where labels agree


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
    vectors = _chosen_vectors(vectors, has_roles=model.config.binding != "none")
    positions = Positions.of(sample.questions)
    task = Task(
        sample=sample,
        positions=positions,
        labelled=[Labelled.of(name, positions.labels[name], positions.question) for name in LABELS],
        sides=Sides.of(positions),
        names=[f"encoder.{number}.self_attention.{vectors}" for number in range(n_layers)],
        layer=chosen_layer(model, layer),
        heads=chosen_heads(head, n_heads),
        n_clusters=clusters,
        seed=seed,
    )
    found = task.vectors(model)
    clusterings = [[task.cluster(own[:, one]) for one in range(n_heads)] for own in found]
    initial = [_initial(fresh(model, seed + number), task) for number in range(INITIAL_DRAWS)]
    return Roles(
        seed=seed,
        vectors=vectors,
        layer=task.layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=clusters,
        questions=sample.questions,
        n_parsed=sum(one is not None for one in positions.expressions),
        heads=_named([(one, clusterings[task.layer][one]) for one in task.heads], task),
        initial_structural=initial[0].n_structural,
        labels=tuple(_summary(label, task, initial) for label in task.labelled),
        scores=tuple(_scores(found, clusterings, task)),
        reversal=_reversal(found, clusterings, task, initial),
    )


def _named(clusterings: list[tuple[int, Clustering]], task: Task) -> tuple[HeadRoles, ...]:
    """The clusters of some heads with their names."""
    positions = task.positions
    said = naming.statements(positions.characters, positions.labels)
    return tuple(
        HeadRoles(
            head=head,
            assigned=positions.split(one.assigned),
            names=naming.names(
                one.assigned, task.n_clusters, said, positions.question, len(clusterings)
            ),
        )
        for head, one in clusterings
    )


def _initial(model: Transformer, task: Task) -> Initial:
    """The same of a model with initial weights; probes of all its heads, as of the trained one's.

    They are chosen as the trained model's are: the best of as many heads.
    """
    found = task.vectors(model)
    named = _named([(one, task.cluster(found[task.layer][:, one])) for one in task.heads], task)
    heads = [own[:, one] for own in found for one in range(own.shape[1])]
    best = {
        label.name: max(
            (
                probes.probe(one, label, task.seed, n_deals=1, n_compared=len(heads))
                for one in heads
            ),
            key=lambda one: one.accuracy,
        )
        for label in task.labelled
        if label.obstacle is None
    }
    reversals = (
        []
        if task.sides.obstacle is not None
        else [reversal.transfer(one, task.sides, task.seed) for one in heads]
    )
    return Initial(
        n_structural=sum(
            one.is_structural for head in named for one in head.names if one is not None
        ),
        best=best,
        reversal=max(reversals, key=lambda one: one.accuracy, default=None),
    )


def _chosen_vectors(vectors: str | None, *, has_roles: bool) -> str:
    if vectors is None:
        return ROLE if has_roles else VALUE
    if vectors not in {ROLE, VALUE} or (vectors == ROLE and not has_roles):
        there = f"{ROLE} and {VALUE}" if has_roles else VALUE
        raise SettingsError(f"the model has no vectors {vectors!r} to cluster; it has {there}")
    return vectors


def _scores(found: Floats, clusterings: list[list[Clustering]], task: Task) -> Iterator[Score]:
    """Every head of every layer with every label."""
    n_compared = found.shape[0] * found.shape[2]
    for layer, own in enumerate(found):
        for head, clustering in enumerate(clusterings[layer]):
            for label in task.labelled:
                information, told = None, None
                if label.obstacle is None:
                    information = probes.information(
                        clustering.assigned, label, task.n_clusters, task.seed
                    )
                    told = probes.probe(own[:, head], label, task.seed, n_compared=n_compared)
                yield Score(
                    layer=layer, head=head, label=label.name, information=information, probe=told
                )


def _reversal(
    found: Floats, clusterings: list[list[Clustering]], task: Task, initial: list[Initial]
) -> Reversal:
    """Whether heads have reversed or unreversed sides where the two differ."""
    sides, seed = task.sides, task.seed
    heads: list[HeadTransfer] = []
    readers: dict[int, Transfer] = {}
    if sides.obstacle is None:
        for layer, own in enumerate(found):
            for head, clustering in enumerate(clusterings[layer]):
                one_hot = np.eye(task.n_clusters)[clustering.assigned]
                heads.append(
                    HeadTransfer(
                        layer=layer,
                        head=head,
                        probe=reversal.transfer(own[:, head], sides, seed),
                        clusters=reversal.transfer(one_hot, sides, seed, reversal.by_cluster),
                    )
                )
        positions = task.positions
        readers = probes.widen(
            lambda reach: reversal.transfer(positions.character_features(reach), sides, seed),
            positions.longest,
        )
    return Reversal(
        n_agreeing=int(sides.agree.sum()),
        n_disagreeing=int((~sides.agree).sum()),
        n_questions=len(np.unique(sides.question[~sides.agree])),
        obstacle=sides.obstacle,
        heads=tuple(heads),
        readers=readers,
        initial=tuple(one.reversal for one in initial if one.reversal is not None),
    )


def _summary(label: Labelled, task: Task, initial: list[Initial]) -> LabelSummary:
    positions, seed = task.positions, task.seed
    readers: dict[int, Probed] = {}
    characters = None
    if label.obstacle is None:
        readers = probes.widen(
            lambda reach: probes.probe(positions.character_features(reach), label, seed, n_deals=1),
            positions.longest,
        )
        alphabet, own = np.unique(list(positions.characters), return_inverse=True)
        characters = probes.information(own, label, len(alphabet), seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelSummary(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        readers=readers,
        initial=tuple(one.best[label.name] for one in initial if label.name in one.best),
        characters=characters,
    )


def save(roles: Roles, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the figures; returns the files."""
    path = write(folder, "roles", roles.to_values(), context)
    return [path, *roles_figure.draw(roles, context, Path(folder))]
