"""What was found in roles: clusters with names, scores of structure; in words and values."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret import naming
from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.probes import Information, Probed

Integers = npt.NDArray[np.int64]

ROLE, VALUE = "role", "value"
# Linear readers of the text alone, by how many characters on each side they see. On 128 questions
# of arithmetic__mixed the second tells the side in 70% of positions, the third in 81%.
CHARACTER = "its character and place alone"
READERS = {CHARACTER: 0, "and 2 characters on each side": 2, "and 4 on each side": 4}


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
    controls: dict[str, Probed]  # what linear readers of the text tell, by what they see
    characters: Information | None  # what clusters would tell that are the characters themselves

    @property
    def best_control(self) -> Probed:
        """The reader of the text that does best."""
        return max(self.controls.values(), key=lambda one: one.accuracy)


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
    initial_structural: int  # such names where the weights are drawn anew
    labels: tuple[LabelSummary, ...]
    scores: tuple[Score, ...]
    seed: int

    @property
    def meaning(self) -> list[str]:
        """What was found, in a line for each label, and how many clusters have names."""
        names = [name for head in self.heads for name in head.names if name is not None]
        n_clusters = self.n_clusters * len(self.heads)
        structural = sum(name.is_structural for name in names)
        return [
            f"{len(self.questions)} questions, {self.n_parsed} of them with an expression. Of "
            f"{n_clusters} clusters of {self.vectors} vectors in encoder layer {self.layer}, "
            f"{len(names)} have a clear name, and {structural} one that says more than the "
            f"character; with initial weights, {self.initial_structural}.",
            *(self._meaning_of(label) for label in self.labels),
        ]

    def _meaning_of(self, label: LabelSummary) -> str:
        if label.obstacle is not None:
            return f"{label.name}: not scored, as {label.obstacle}."
        own = [(one, one.probe) for one in self.scores if one.label == label.name and one.probe]
        best, probe = max(own, key=lambda pair: pair[1].accuracy)
        low, high = probe.interval
        readers = ", ".join(f"{name} {one.accuracy:.0%}" for name, one in label.controls.items())
        verdict = "more than" if low > label.best_control.interval[1] else "not surely more than"
        return (
            f"{label.name}: the best of {len(own)} heads ({best.layer}.{best.head}) tells it in "
            f"{probe.accuracy:.0%} of positions (95% {low:.0%} to {high:.0%}, all heads together), "
            f"{verdict} linear readers of the text: {readers}; commonest {probe.majority:.0%}."
        )

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "seed": self.seed,
            "meaning": self.meaning,
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
            "initial_structural_names": self.initial_structural,
            "heads": [
                {
                    "head": one.head,
                    "assigned": list(one.assigned),
                    "names": [_name_values(name) for name in one.names],
                }
                for one in self.heads
            ],
            "labels": [asdict(one) for one in self.labels],
            "scores": [asdict(one) for one in self.scores],
        }


def _name_values(name: naming.Name | None) -> Values | None:
    if name is None:
        return None
    return {
        "name": str(name),
        "is_structural": name.is_structural,
        "purity": name.purity,
        "n_positions": name.n_positions,
        "n_questions": name.n_questions,
    }
