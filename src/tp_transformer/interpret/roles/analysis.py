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

from tp_transformer import figures
from tp_transformer.errors import SettingsError
from tp_transformer.interpret.analyses import RolesOptions, head_indices, layer_index
from tp_transformer.interpret.core.chart import ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.record import (
    ENCODER,
    Clustering,
    Floats,
    cluster,
    point,
    record,
    untrained_models,
)
from tp_transformer.interpret.core.result import Context, Result, ResultTable, in_words
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.roles import probes, reversal
from tp_transformer.interpret.roles.clusters import HeadClusters, plot_questions
from tp_transformer.interpret.roles.probes import (
    ClusterInformation,
    Labelled,
    Positions,
    Probed,
    S,
)
from tp_transformer.interpret.roles.reversal import ModelTransfer, Reversal, Sides, Transfer
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track

INITIAL_DRAWS = 3  # untrained models


@dataclass(frozen=True, kw_only=True)
class HeadScore:
    """How well one head predicts one label; None if the label cannot be scored."""

    layer: int
    head: int
    label: str
    information: ClusterInformation | None
    probe: Probed | None


@dataclass(frozen=True, kw_only=True)
class LabelControls:
    """A label in the sample, and how well it is predicted without the trained model."""

    name: str
    classes: dict[str, int]  # the number of positions of each class
    n_left_out: int  # positions whose class is too rare
    obstacle: str | None  # the reason why the label cannot be scored
    readers: dict[int, Probed]  # text probes, by the characters that they see on each side
    initial: tuple[Probed, ...]  # the best head of each untrained model
    characters: ClusterInformation | None  # in clusters that are the characters themselves

    @property
    def best_reach(self) -> int:
        """The number of characters on each side that the best text probe sees."""
        return max(self.readers, key=lambda reach: self.readers[reach].accuracy)

    @property
    def best_reader(self) -> Probed:
        """The best text probe."""
        return self.readers[self.best_reach]

    @property
    def best_initial(self) -> Probed:
        """The best head of all untrained models."""
        return max(self.initial, key=lambda probed: probed.accuracy)


@dataclass(frozen=True, kw_only=True)
class RolesResult(Result):
    """The clusters of a layer, and the structure in every head of every layer."""

    vectors: str  # role, or value
    layer: int
    clusters: int  # the number of clusters of each head
    n_parsed: int  # questions with an expression
    initial_structural_names: tuple[int, ...]  # their number in each untrained model
    heads: tuple[HeadClusters, ...]
    labels: tuple[LabelControls, ...]
    scores: tuple[HeadScore, ...]
    reversal: Reversal

    name = "roles"

    def summary(self) -> list[str]:
        names = [name for head in self.heads for name in head.names if name is not None]
        n_structural = sum(head.n_structural for head in self.heads)
        untrained = ", ".join(map(str, self.initial_structural_names))
        obstacles: dict[str, list[str]] = {}
        for label in self.labels:
            if label.obstacle is not None:
                obstacles.setdefault(label.obstacle, []).append(label.name)
        return [
            f"{len(self.context.sample)} questions, {self.n_parsed} of them with an expression. Of "
            f"{self.clusters * len(self.heads)} clusters of {self.vectors} vectors in encoder "
            f"layer {self.layer}, {len(names)} have a clear name, and {n_structural} a name that "
            f"says more than the character ({untrained} in untrained models).",
            *(self._label_summary(label) for label in self.scored),
            *(
                f"{', '.join(names)}: not scored, because {obstacle}."
                for obstacle, names in obstacles.items()
            ),
            self.reversal.summary(),
        ]

    @property
    def scored(self) -> list[LabelControls]:
        """The labels that can be scored."""
        return [label for label in self.labels if label.obstacle is None]

    def _label_summary(self, label: LabelControls) -> str:
        low, _ = self._best(label)[1].interval
        untrained = _more(low, max(control.interval[1] for control in label.initial))
        n_heads = sum(score.label == label.name for score in self.scores)
        return (
            f"{label.name}: the best of {n_heads} heads scores {untrained} "
            "the best of as many heads of untrained models, and "
            f"{_more(low, label.best_reader.interval[1])} the best text probe."
        )

    def _best(self, label: LabelControls) -> tuple[HeadScore, Probed]:
        probed = [
            (score, score.probe)
            for score in self.scores
            if score.label == label.name and score.probe is not None
        ]
        return max(probed, key=lambda pair: pair[1].accuracy)

    def tables(self) -> list[ResultTable]:
        rows = tuple(self._label_row(label) for label in self.scored)
        probed = ResultTable(
            title="Accuracy of linear probes on held-out questions",
            columns=("label", "head", "accuracy", "95%", "untrained", "text", "most frequent"),
            rows=rows,
            note="95%: an interval for all heads together. untrained: the best head of each "
            "untrained model. text: the best text probe, and the characters that it sees on each "
            "side. most frequent: the share of the most frequent label.",
        )
        return [*([probed] if rows else []), *self.reversal.tables()]

    def _label_row(self, label: LabelControls) -> tuple[str, ...]:
        best, probe = self._best(label)
        return (
            label.name,
            f"{best.layer}.{best.head}",
            f"{probe.accuracy:.0%}",
            in_words(probe.interval, ".0f", 100),
            ", ".join(f"{control.accuracy:.0%}" for control in label.initial),
            f"{label.best_reader.accuracy:.0%} ({label.best_reach})",
            f"{probe.majority:.0%}",
        )

    def plot(self) -> "dict[str, figures.Figure]":
        plots = {
            f"roles-layer{self.layer}-head{head.head}": plot_questions(
                head, self.context, self.vectors, self.layer
            )
            for head in self.heads
        }
        if any(score.probe for score in self.scores):
            plots["roles-structure"] = self._plot_structure()
        return plots

    def _plot_structure(self) -> "figures.Figure":
        """Plot the accuracy of the best head for each label, beside those of the controls."""
        best = [self._best(label) for label in self.scored]
        probed = {
            "best head": [probe for _, probe in best],
            "best head, untrained": [label.best_initial for label in self.scored],
            "best text probe": [label.best_reader for label in self.scored],
        }
        looks = (look("o", "blue"), look("o", "blue", is_hollow=True), look("x", "red"))
        marks = [
            Marks(name, mark, [x.accuracy for x in scores], [x.interval for x in scores])
            for (name, scores), mark in zip(probed.items(), looks, strict=True)
        ]
        majorities = [probe.majority for _, probe in best]
        marks.append(Marks("most frequent label", look("|", "green", size=6), majorities))
        rows = [
            f"{label.name}\n(head {score.layer}.{score.head})"
            for label, (score, _) in zip(self.scored, best, strict=True)
        ]
        return chart(
            [ChartPanel(rows=rows, marks=marks)],
            title=f"Structure in the {self.vectors} vectors of the encoder",
            axis="accuracy of a linear probe on held-out questions",
            caption="Lines: 95% intervals, for all heads together. The best of as many heads of "
            f"{INITIAL_DRAWS} untrained models, and the best probe of the text alone. "
            f"{self.context.caption}",
        )


def _more(low: float, high: float) -> str:
    return "more than" if low > high else "not clearly more than"


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

    def text_probes(self, score: Callable[[Floats], S]) -> dict[int, S]:
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
        return HeadClusters.named(chosen, positions, self.inputs.n_clusters)

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


def analyse(model: Transformer, sample: Sample, options: RolesOptions, seed: int) -> RolesResult:
    """Cluster the roles of a layer, and score every head of every layer.

    The paper uses 128 questions of arithmetic__mixed, the last encoder layer and 20 clusters. With
    `vectors="value"` a TP-Transformer can be compared with a Transformer.
    """
    n_layers = model.config.n_layers
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
        heads=head_indices(options.head, model.config.n_heads),
        n_clusters=options.clusters,
        seed=seed,
    )
    heads = _Heads.of(model, inputs)
    controls = [
        _Untrained.of(other, inputs)
        for other in untrained_models(model, seed, INITIAL_DRAWS, "measuring untrained models")
    ]
    return RolesResult(
        context=Context.of(model, sample, seed),
        vectors=vectors,
        layer=inputs.layer,
        clusters=options.clusters,
        n_parsed=sum(expression is not None for expression in sample.expressions),
        heads=heads.named(),
        initial_structural_names=tuple(control.n_structural for control in controls),
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
    return HeadClusters.named(clusterings, Positions.of(sample), n_clusters)


def _available(model: Transformer) -> tuple[str, ...]:
    """Return the names of the vectors that can be clustered, the default first."""
    return ("role", "value") if model.config.d_role else ("value",)


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
