"""What operations on roles do to the answers, in words and values."""

from dataclasses import dataclass

from tp_transformer.interpret.outcome import Values
from tp_transformer.scoring.statistics import FEWEST, Interval, wilson

OPERATIONS = (
    "zero",
    "random",
    "swap",
    "as far as swap",
    "centroid",
    "as far as centroid",
    "same cluster",
    "other cluster",
)
# An operation after which only the cluster is left, and the same way to somewhere else.
ABOUT_CLUSTERS = (("centroid", "as far as centroid"), ("same cluster", "other cluster"))
PAIRS = (("swap", "as far as swap"), *ABOUT_CLUSTERS)  # an operation and its control
LARGEST_P = 0.05  # that counts as clear


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an operation takes place."""

    name: str
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None  # of each question; None is all of them
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What an operation does to the answers.

    Attributes:
        target: where
        operation: what, one of OPERATIONS
        right: answers that are right after it
        is_changed: of each question, whether another symbol is likeliest at some position of its
            answer, the right ones before it being given
        surprise: how much less likely right answers became, in nats per question
        surprise_interval: 95%, questions drawn anew; None where they are too few
        touched: the share of the roles that were moved
        moved: how far these were moved, as a share of their lengths
    """

    target: Target
    operation: str
    right: int
    is_changed: tuple[bool, ...]
    surprise: float
    surprise_interval: Interval | None
    touched: float
    moved: float

    @property
    def changed(self) -> int:
        """How many answers changed."""
        return sum(self.is_changed)

    @property
    def share(self) -> float:
        """The share of changed answers."""
        return self.changed / len(self.is_changed)

    @property
    def interval(self) -> Interval:
        """Of that share, 95% (Wilson)."""
        return wilson(self.changed, len(self.is_changed))

    def __str__(self) -> str:
        if not self.touched:
            return f"{self.operation} (no roles moved)"
        low, high = self.interval
        return f"{self.operation} {self.share:.0%} ({100 * low:.0f} to {100 * high:.0f})"

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "target": self.target.name,
            "heads": self.target.heads,
            "positions": self.target.positions,
            "is_control": self.target.is_control,
            "operation": self.operation,
            "right": self.right,
            "changed": self.changed,
            "changed_share": self.share,
            "changed_interval": self.interval,
            "surprise": self.surprise,
            "surprise_interval": self.surprise_interval,
            "touched": self.touched,
            "moved": self.moved,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Whether two operations change the answers to the same questions equally often.

    Attributes:
        first: an effect
        second: its control
        only_first: answers that only the first changes
        only_second: answers that only the second changes
        p_value: McNemar's exact test, raised for the number of comparisons (Holm)
    """

    first: Effect
    second: Effect
    only_first: int
    only_second: int
    p_value: float

    @property
    def is_clear(self) -> bool:
        """Whether chance is an unlikely reason for the difference."""
        return self.p_value <= LARGEST_P

    @property
    def says(self) -> str:
        """The difference in a word, where there is a clear one."""
        if not self.is_clear:
            return "no clear difference"
        return "fewer" if self.only_first < self.only_second else "more"

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "target": self.first.target.name,
            "operation": self.first.operation,
            "control_target": self.second.target.name,
            "control_operation": self.second.operation,
            "only_operation": self.only_first,
            "only_control": self.only_second,
            "p_value": self.p_value,
            "says": self.says,
        }


@dataclass(frozen=True, kw_only=True)
class Surgery:
    """What operations on the roles of an encoder layer do to the answers."""

    layer: int
    n: int  # questions
    n_clusters: int
    place: str  # where in the questions, in words
    right: int  # answers that are right without any operation
    effects: tuple[Effect, ...]
    comparisons: tuple[Comparison, ...]
    seed: int

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "seed": self.seed,
            "layer": self.layer,
            "n": self.n,
            "n_clusters": self.n_clusters,
            "place": self.place,
            "right": self.right,
            "effects": [one.to_values() for one in self.effects],
            "comparisons": [one.to_values() for one in self.comparisons],
            "meaning": self.meaning,
        }

    @property
    def meaning(self) -> list[str]:
        """What happened, in a line for each target, and what it says about clusters."""
        lines = [
            f"Encoder layer {self.layer}, {self.place}, {_questions(self.n)}, answered correctly "
            f"without surgery: {self.right}; {self.n_clusters} clusters for each head. Changed "
            "answers (another symbol is likeliest at some position, the right ones before it being "
            "given), with 95% intervals; surgery.json has how many roles were moved and how far:"
        ]
        for name in dict.fromkeys(one.target.name for one in self.effects):
            own = (str(one) for one in self.effects if one.target.name == name)
            lines.append(f"{name}: {', '.join(own)}")
        if self.n < FEWEST:
            lines.append(f"Fewer than {FEWEST} questions: there is no interval of the surprise.")
        return [*lines, *self._against_controls, *self._about_clusters]

    @property
    def _against_controls(self) -> list[str]:
        """Chosen heads and positions beside random ones."""
        lines = []
        if len({one.heads for one in self._own_targets}) > 1:
            lines.append("The heads are each other's controls.")
        for target in self._own_targets:
            said = [
                f"beside {one.second.target.name}: {one.says} (p = {one.p_value:.2g})"
                for one in self.comparisons
                if one.first.operation == "zero" and one.first.target == target
            ]
            if said:
                lines.append(
                    f"Changed answers without the roles of {target.name}, {'; '.join(said)}. "
                    "(Heads of initial weights differ, too.)"
                )
        return lines

    @property
    def _about_clusters(self) -> list[str]:
        """What the paired tests say, and a verdict where both do."""
        said = {pair: self._said_of(pair[0]) for pair in PAIRS}
        lines = [
            f"Changed answers after {first!r} beside {second!r}: "
            + "; ".join(f"{word} ({', '.join(names)})" for word, names in words.items())
            + "."
            for (first, second), words in said.items()
        ]
        fewer = [said[pair].get("fewer", []) for pair in ABOUT_CLUSTERS]
        both = [name for name in fewer[0] if name in fewer[1]]
        verdict = (
            f"The last two are both fewer in {', '.join(both)}, as if clusters are what roles are "
            "about."
            if both
            else "The last two are nowhere both clearly fewer, so nothing is said about clusters."
        )
        return [
            *lines,
            f"Clear is p <= {LARGEST_P} by McNemar's exact test of the same questions, corrected "
            f"for {len(self.comparisons)} comparisons. {verdict}",
        ]

    def _said_of(self, operation: str) -> dict[str, list[str]]:
        """What its comparisons say, and of which targets."""
        words = {
            one.first.target: one.says
            for one in self.comparisons
            if one.first.operation == operation
        }
        found: dict[str, list[str]] = {}
        for target in self._own_targets:
            word = words.get(target, "nothing to compare, as no role was moved")
            found.setdefault(word, []).append(target.name)
        return found

    @property
    def _own_targets(self) -> list[Target]:
        return list(dict.fromkeys(one.target for one in self.effects if not one.target.is_control))


def _questions(n: int) -> str:
    return "1 question" if n == 1 else f"{n} questions"
