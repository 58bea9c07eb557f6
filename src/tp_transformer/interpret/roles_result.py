"""What was found in roles: clusters with names, scores of structure; in words and values."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret import naming
from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.probes import Information, Probed
from tp_transformer.interpret.reversal import Reversal

Integers = npt.NDArray[np.int64]

ROLE, VALUE = "role", "value"


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
    readers: dict[int, Probed]  # of the text, by how many characters on each side they see
    initial: tuple[Probed, ...]  # the best head of each of some models with initial weights
    characters: Information | None  # what clusters would tell that are the characters themselves

    @property
    def best_reach(self) -> int:
        """How many characters on each side the reader of the text sees that does best."""
        return max(self.readers, key=lambda reach: self.readers[reach].accuracy)

    @property
    def best_reader(self) -> Probed:
        """The reader of the text that does best."""
        return self.readers[self.best_reach]

    @property
    def best_initial(self) -> Probed:
        """The head with initial weights that does best."""
        return max(self.initial, key=lambda one: one.accuracy)


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
    reversal: Reversal
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
            self.reversal.meaning,
        ]

    def _meaning_of(self, label: LabelSummary) -> str:
        if label.obstacle is not None:
            return f"{label.name}: not scored, as {label.obstacle}."
        own = [(one, one.probe) for one in self.scores if one.label == label.name and one.probe]
        best, probe = max(own, key=lambda pair: pair[1].accuracy)
        low, high = probe.interval
        initial = ", ".join(f"{one.accuracy:.0%}" for one in label.initial)
        return (
            f"{label.name}: the best of {len(own)} heads ({best.layer}.{best.head}) tells it in "
            f"{probe.accuracy:.0%} of positions (95% {low:.0%} to {high:.0%}, all heads together), "
            f"{_more(low, max(one.interval[1] for one in label.initial))} the best of as many "
            f"heads with initial weights ({initial}), and "
            f"{_more(low, label.best_reader.interval[1])} the strongest linear reader of the text, "
            f"which sees {label.best_reach} characters on each side "
            f"({label.best_reader.accuracy:.0%}; a character and its place alone "
            f"{label.readers[0].accuracy:.0%}); commonest {probe.majority:.0%}."
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
            "reversal": self.reversal.to_values(),
        }


def _more(low: float, high: float) -> str:
    return "more than" if low > high else "not surely more than"


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
