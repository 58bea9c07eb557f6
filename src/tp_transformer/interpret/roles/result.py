"""The result of the roles analysis: named clusters, and scores of the structure in them."""

from dataclasses import dataclass

from tp_transformer.interpret.core.arrays import Floats, Integers
from tp_transformer.interpret.core.result import Result, ResultTable, Values
from tp_transformer.interpret.roles.naming import Name
from tp_transformer.interpret.roles.probes import ClusterInformation, Probed
from tp_transformer.interpret.roles.reversal import Reversal


@dataclass(frozen=True, kw_only=True)
class HeadClusters:
    """The clusters of a head: the cluster of each position of each question, and the names."""

    head: int
    assigned: tuple[Integers, ...]
    centroids: Floats  # (cluster, d_head)
    names: tuple[Name | None, ...]

    @property
    def n_structural(self) -> int:
        """The number of names that say more than the character."""
        return sum(name.is_structural for name in self.names if name is not None)

    def values(self) -> Values:
        """Return the numbers."""
        return {**vars(self), "names": [name and name.values() for name in self.names]}


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
    """A label in the sample, and how well it is predicted without the trained model.

    Attributes:
        name: the label
        classes: the number of positions of each class
        n_left_out: the number of positions whose class is too rare
        obstacle: the reason why the label cannot be scored, or None
        readers: text probes, by the number of characters that they see on each side
        initial: the best head of each untrained model
        characters: the information in clusters that are the characters themselves
    """

    name: str
    classes: dict[str, int]
    n_left_out: int
    obstacle: str | None
    readers: dict[int, Probed]
    initial: tuple[Probed, ...]
    characters: ClusterInformation | None

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
    n_layers: int
    n_heads: int
    n_clusters: int
    n_parsed: int  # questions with an expression
    heads: tuple[HeadClusters, ...]
    initial_structural: tuple[int, ...]  # structural names in each untrained model
    labels: tuple[LabelControls, ...]
    scores: tuple[HeadScore, ...]
    reversal: Reversal

    name = "roles"

    def summary(self) -> list[str]:
        """Return a line on names, a line for each label, and a line on the reversal.

        Labels that cannot be scored for the same reason share a line.
        """
        names = [name for head in self.heads for name in head.names if name is not None]
        n_structural = sum(head.n_structural for head in self.heads)
        untrained = ", ".join(map(str, self.initial_structural))
        obstacles: dict[str, list[str]] = {}
        for label in self.labels:
            if label.obstacle is not None:
                obstacles.setdefault(label.obstacle, []).append(label.name)
        return [
            f"{len(self.context.sample)} questions, {self.n_parsed} of them with an expression. Of "
            f"{self.n_clusters * len(self.heads)} clusters of {self.vectors} vectors in encoder "
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
        return (
            f"{label.name}: the best of {self.n_layers * self.n_heads} heads scores {untrained} "
            "the best of as many heads of untrained models, and "
            f"{_more(low, label.best_reader.interval[1])} the best text probe."
        )

    def _best(self, label: LabelControls) -> tuple[HeadScore, Probed]:
        """Return the head whose probe predicts a label best."""
        own = [(score, score.probe) for score in self.scores if score.label == label.name]
        probed = [(score, probe) for score, probe in own if probe is not None]
        return max(probed, key=lambda pair: pair[1].accuracy)

    def tables(self) -> list[ResultTable]:
        """Return the accuracies of probes, and those of the test of the reversal."""
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
        low, high = probe.interval
        return (
            label.name,
            f"{best.layer}.{best.head}",
            f"{probe.accuracy:.0%}",
            f"{100 * low:.0f} to {100 * high:.0f}",
            ", ".join(f"{control.accuracy:.0%}" for control in label.initial),
            f"{label.best_reader.accuracy:.0%} ({label.best_reach})",
            f"{probe.majority:.0%}",
        )

    def values(self) -> Values:
        """Return the numbers."""
        return {
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
            "initial_structural_names": self.initial_structural,
            "heads": [head.values() for head in self.heads],
            "labels": self.labels,
            "scores": self.scores,
            "reversal": self.reversal.values(),
        }


def _more(low: float, high: float) -> str:
    return "more than" if low > high else "not clearly more than"
