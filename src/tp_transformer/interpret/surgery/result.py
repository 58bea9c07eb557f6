"""The result of the surgery analysis: the effect of operations on roles."""

from dataclasses import dataclass

from tp_transformer.foundation.statistics import FEWEST, Interval, wilson
from tp_transformer.interpret.core.result import Result, ResultTable, Values

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
# An operation that keeps the cluster, and one that moves roles as far without keeping it.
ABOUT_CLUSTERS = (("centroid", "as far as centroid"), ("same cluster", "other cluster"))
PAIRS = (("swap", "as far as swap"), *ABOUT_CLUSTERS)  # operations with their controls
LARGEST_P = 0.05  # largest p-value of a clear difference


@dataclass(frozen=True, kw_only=True)
class Target:
    """The heads and positions of an operation."""

    name: str
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None  # for each question; None for all positions
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of an operation on the answers.

    Attributes:
        target: heads and positions
        operation: one of OPERATIONS
        right: number of answers that are right after it
        is_changed: for each question, whether the predicted answer changed: whether another token
            is the likeliest at some position, given the right tokens before it
        surprise: mean increase of the negative log-likelihood of the right answers, in nats
        surprise_interval: 95% interval over resampled questions; None for too few questions
        touched: share of the roles that were moved
        moved: mean distance of these, relative to their mean length
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
        """The number of changed answers."""
        return sum(self.is_changed)

    @property
    def share(self) -> float:
        """The share of changed answers."""
        return self.changed / len(self.is_changed)

    @property
    def interval(self) -> Interval:
        """The 95% interval of that share (Wilson)."""
        return wilson(self.changed, len(self.is_changed))

    def values(self) -> Values:
        """Return the numbers."""
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
class EffectComparison:
    """A comparison of an effect with its control on the same questions.

    Attributes:
        first: the effect
        second: its control
        only_first: number of answers that only the first changes
        only_second: number of answers that only the second changes
        p_value: McNemar's exact test, Holm-adjusted
    """

    first: Effect
    second: Effect
    only_first: int
    only_second: int
    p_value: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value <= LARGEST_P

    @property
    def says(self) -> str:
        """The difference in a word, if it is clear."""
        if not self.is_clear:
            return "no clear difference"
        return "fewer" if self.only_first < self.only_second else "more"

    def values(self) -> Values:
        """Return the numbers."""
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
class SurgeryResult(Result):
    """The effects of operations on the roles of an encoder layer."""

    layer: int
    n_clusters: int
    place: str  # the positions, in words
    right: int  # answers that are right without any operation
    effects: tuple[Effect, ...]
    comparisons: tuple[EffectComparison, ...]

    name = "surgery"

    @property
    def n(self) -> int:
        """The number of questions."""
        return len(self.context.sample)

    def values(self) -> Values:
        """Return the numbers."""
        return {
            **super().values(),
            "n": self.n,
            "effects": [effect.values() for effect in self.effects],
            "comparisons": [comparison.values() for comparison in self.comparisons],
        }

    def summary(self) -> list[str]:
        """Return what was operated on, and the comparisons with controls."""
        questions = "1 question" if self.n == 1 else f"{self.n} questions"
        lines = [
            f"Encoder layer {self.layer}, {self.place}, {questions}, answered correctly without "
            f"surgery: {self.right}; {self.n_clusters} clusters for each head. An answer counts as "
            "changed if another token is the likeliest at some position, given the right tokens "
            "before it."
        ]
        if self.n < FEWEST:
            lines.append(f"Fewer than {FEWEST} questions: there is no interval of the surprise.")
        return [*lines, *self._against_controls(), *self._about_clusters()]

    def tables(self) -> list[ResultTable]:
        """Return the shares of changed answers: a row for each target."""
        found = {(effect.target.name, effect.operation): effect for effect in self.effects}
        table = ResultTable(
            title="Changed answers in %, with 95% intervals",
            columns=("roles of", *OPERATIONS),
            rows=tuple(
                (name, *(_cell(found[name, operation]) for operation in OPERATIONS))
                for name in dict.fromkeys(effect.target.name for effect in self.effects)
            ),
            note="-: no roles moved. surgery.json has how many roles were moved and how far.",
        )
        return [table]

    def _against_controls(self) -> list[str]:
        """Compare chosen heads and positions with random ones."""
        lines = []
        if len({target.heads for target in self._targets()}) > 1:
            lines.append("The heads serve as controls for each other.")
        for target in self._targets():
            found = [
                f"compared with {control.second.target.name}: {control.says} "
                f"(p = {control.p_value:.2g})"
                for control in self.comparisons
                if control.first.operation == "zero" and control.first.target == target
            ]
            if found:
                lines.append(
                    f"Changed answers without the roles of {target.name}, {'; '.join(found)}. "
                    "(Heads of untrained models differ as well.)"
                )
        return lines

    def _about_clusters(self) -> list[str]:
        """Return the paired tests, and a verdict if both about clusters are clear."""
        found = {pair: self._differences(pair[0]) for pair in PAIRS}
        lines = [
            f"Changed answers after {first!r} compared with {second!r}: "
            + "; ".join(f"{word} ({', '.join(names)})" for word, names in words.items())
            + "."
            for (first, second), words in found.items()
        ]
        fewer = [found[pair].get("fewer", []) for pair in ABOUT_CLUSTERS]
        both = [name for name in fewer[0] if name in fewer[1]]
        verdict = (
            f"The last two are both fewer in {', '.join(both)}, which suggests that the cluster of "
            "a role is what matters there."
            if both
            else "The last two are nowhere both clearly fewer, so nothing is said about clusters."
        )
        return [
            *lines,
            f"Clear means p <= {LARGEST_P} by McNemar's exact test on the same questions, adjusted "
            f"for {len(self.comparisons)} comparisons. {verdict}",
        ]

    def _differences(self, operation: str) -> dict[str, list[str]]:
        """Return the differences of an operation from its control, each with its targets."""
        words = {
            comparison.first.target: comparison.says
            for comparison in self.comparisons
            if comparison.first.operation == operation
        }
        found: dict[str, list[str]] = {}
        for target in self._targets():
            word = words.get(target, "nothing to compare, because no role was moved")
            found.setdefault(word, []).append(target.name)
        return found

    def _targets(self) -> list[Target]:
        """Return the targets other than controls."""
        targets = dict.fromkeys(effect.target for effect in self.effects)
        return [target for target in targets if not target.is_control]


def _cell(effect: Effect) -> str:
    """Return the share of changed answers and, below it, its interval, in percent."""
    if not effect.touched:
        return "-"
    low, high = effect.interval
    return f"{100 * effect.share:.0f}\n{100 * low:.0f}-{100 * high:.0f}"
