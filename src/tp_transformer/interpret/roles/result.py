"""The result of the roles analysis: named clusters, and scores of the structure in them."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.core.result import Result, Values
from tp_transformer.interpret.roles.naming import Name
from tp_transformer.interpret.roles.probes import ClusterInformation, Probed
from tp_transformer.interpret.roles.reversal import Reversal

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class HeadClusters:
    """The clusters of a head: the cluster of each position of each question, and the names."""

    head: int
    assigned: tuple[Integers, ...]
    centroids: npt.NDArray[np.float64]  # (cluster, d_head)
    names: tuple[Name | None, ...]

    @property
    def n_structural(self) -> int:
        """The number of names that say more than the character."""
        return sum(name.is_structural for name in self.names if name is not None)

    def values(self) -> Values:
        """Return the numbers."""
        names = [
            name and {"name": str(name), "is_structural": name.is_structural, **_counts(name)}
            for name in self.names
        ]
        return {
            "head": self.head,
            "assigned": list(self.assigned),
            "centroids": self.centroids,
            "names": names,
        }


def _counts(name: Name) -> Values:
    return {key: value for key, value in asdict(name).items() if key != "statements"}


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
    initial_structural: int  # structural names in an untrained model
    labels: tuple[LabelControls, ...]
    scores: tuple[HeadScore, ...]
    reversal: Reversal

    name = "roles"

    def summary(self) -> list[str]:
        """Return a line on names, a line for each label, and a line on the reversal."""
        names = [name for head in self.heads for name in head.names if name is not None]
        n_structural = sum(head.n_structural for head in self.heads)
        return [
            f"{len(self.context.sample)} questions, {self.n_parsed} of them with an expression. Of "
            f"{self.n_clusters * len(self.heads)} clusters of {self.vectors} vectors in encoder "
            f"layer {self.layer}, {len(names)} have a clear name, and {n_structural} a name that "
            f"says more than the character ({self.initial_structural} in an untrained model).",
            *map(self._label_summary, self.labels),
            self.reversal.summary(),
        ]

    def _label_summary(self, label: LabelControls) -> str:
        if label.obstacle is not None:
            return f"{label.name}: not scored, because {label.obstacle}."
        own = [(score, score.probe) for score in self.scores if score.label == label.name]
        probed = [(score, probe) for score, probe in own if probe is not None]
        best, probe = max(probed, key=lambda pair: pair[1].accuracy)
        low, high = probe.interval
        initial = ", ".join(f"{control.accuracy:.0%}" for control in label.initial)
        untrained = _more(low, max(control.interval[1] for control in label.initial))
        return (
            f"{label.name}: the best of {len(probed)} heads ({best.layer}.{best.head}) predicts it "
            f"at {probe.accuracy:.0%} of positions (95% {low:.0%} to {high:.0%}, all heads "
            f"together), {untrained} the best of as many heads of untrained models ({initial}), "
            f"and {_more(low, label.best_reader.interval[1])} the best text probe, which sees "
            f"{label.best_reach} characters on each side ({label.best_reader.accuracy:.0%}; a "
            f"character and its position alone {label.readers[0].accuracy:.0%}); most frequent "
            f"label {probe.majority:.0%}."
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
            "labels": [asdict(label) for label in self.labels],
            "scores": [asdict(score) for score in self.scores],
            "reversal": self.reversal.to_values(),
        }


def _more(low: float, high: float) -> str:
    return "more than" if low > high else "not clearly more than"
