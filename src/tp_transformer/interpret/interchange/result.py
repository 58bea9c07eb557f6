"""The result of the interchange analysis: answers after the roles of two numbers were exchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom

from tp_transformer.foundation.statistics import Interval
from tp_transformer.interpret.core.result import Result, ResultTable, Values

EXCHANGES = ("ab", "ac", "bd", "cd")  # those that change the value
# Copies of the role at the place of the first number to the second, in the denominator c/d: from
# the place that is on the same side if sides are reversed there, and from the one that is if not.
REVERSED_COPIES, UNREVERSED_COPIES = ("bc", "ad"), ("ac", "bd")
LARGEST_P = 0.05  # largest p-value of a clear result
CONTROL_DRAWS = 3  # draws of random directions: with one, verdicts depend on the draw


@dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """The number of answers of each kind after an operation on the roles of two numbers.

    Attributes:
        exchanged: right answers to the question with these two numbers exchanged
        exchanged_interval: 95% interval of their share (Wilson); None without questions
        otherwise: right answers to the questions with two other numbers exchanged
        kept: right answers to the question itself
    """

    exchanged: int
    exchanged_interval: Interval | None
    otherwise: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class RoleExchange:
    """The answers after the roles of two numbers were exchanged.

    Attributes:
        letters: the two numbers
        n: questions that are answered before and after each exchange of the numbers themselves
        places: answers after each number gets the role that it has at the other place
        moved: answers after the roles are moved as far in random directions, in all draws together
        numbers: answers after each place gets the role that it has with the other number
    """

    letters: str
    n: int
    places: AnswerCounts
    moved: AnswerCounts
    numbers: AnswerCounts


@dataclass(frozen=True, kw_only=True)
class ShareTest:
    """A binomial test of the share of exchanged answers.

    Attributes:
        count: exchanged answers after exchanged places
        n: these and those of the control
        expected: the expected share
        p_value: probability of `count` or more, Holm-adjusted
    """

    count: int
    n: int
    expected: float
    p_value: float

    @classmethod
    def of(cls, count: int, control: int, times: int) -> "ShareTest":
        """Compare with a control that had `times` as many chances; the p-value is not adjusted."""
        n, expected = count + control, 1 / (1 + times)
        p_value = float(binom.sf(count - 1, n, expected))
        return cls(count=count, n=n, expected=expected, p_value=p_value)


@dataclass(frozen=True, kw_only=True)
class CopiedRoles:
    """Shares of the answers after roles were copied to the numbers of the denominator.

    Attributes:
        kept: right answers
        flipped: right answers if the number to which a role was copied were on the other side
        moved_kept: right answers after the role was moved as far in random directions
        moved_flipped: the others after that
    """

    kept: float
    flipped: float
    moved_kept: float
    moved_flipped: float


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A difference of two shares, and its interval by bootstrap over sets of four digits.

    The interval holds for all choices of layers together, with 95%; None for too few sets.
    """

    value: float
    interval: Interval | None

    @property
    def sign(self) -> int:
        """1 if the interval lies above 0, -1 if it lies below 0, or 0."""
        low, high = self.interval or (-1.0, 1.0)
        return int(low > 0) - int(high < 0)

    def __str__(self) -> str:
        limits = "" if self.interval is None else " ({:+.0f} to {:+.0f})"
        return f"{100 * self.value:+.0f}" + limits.format(*(100 * x for x in self.interval or ()))


@dataclass(frozen=True, kw_only=True)
class SideContrast:
    """Which roles the numbers of the denominator c/d can have without a change of the answer.

    Attributes:
        reversed: roles copied from places on the same reversed side: c at b, d at a
        unreversed: roles copied from places on the same unreversed side: c at a, d at b
        n_sets: number of sets of four digits
        kept: answers kept beyond the control, after reversed minus after unreversed copies
        flipped: flipped answers beyond the control, after unreversed minus after reversed copies
    """

    reversed: CopiedRoles
    unreversed: CopiedRoles
    n_sets: int
    kept: Contrast
    flipped: Contrast

    @property
    def verdict(self) -> str:
        """Whether roles act as sides, and which: answers must be kept and flipped accordingly."""
        side = {1: "reversed", -1: "unreversed"}.get(self.kept.sign)
        if side is None:
            return "it is not clear that roles act as sides"
        if self.flipped.sign != self.kept.sign:
            return f"copies from the same {side} side disturb less, but the answer follows no side"
        return f"roles act as {side} sides"


@dataclass(frozen=True, kw_only=True)
class LayerInterchange:
    """The effect of exchanging the roles of numbers in some layers.

    Attributes:
        layers: the layers
        exchanges: the answers for each pair of numbers
        against_moved: test against roles that are moved in random directions
        against_others: test against the answers to other exchanges
        sides: whether sides are reversed; None without questions
    """

    layers: tuple[int, ...]
    exchanges: tuple[RoleExchange, ...]
    against_moved: ShareTest
    against_others: ShareTest
    sides: SideContrast | None

    @property
    def where(self) -> str:
        """The layers in words."""
        return f"layer {self.layers[0]}" if len(self.layers) == 1 else "all layers at once"

    def summary(self) -> str:
        """Return the verdict and the tests in one line."""
        found = (
            self._verdict()
            if self.n
            else "the model answers no question before and after each exchange of numbers."
        )
        return f"Roles of two numbers exchanged in {self.where}: {found}"

    @property
    def n(self) -> int:
        """The number of answers, of all exchanges together."""
        return sum(exchange.n for exchange in self.exchanges)

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return the counts of answers after exchanges, and after those of the control."""
        places = [exchange.places for exchange in self.exchanges]
        moved = [exchange.moved for exchange in self.exchanges]
        numbers = [exchange.numbers for exchange in self.exchanges]
        return (
            self._row("places", places, n_draws=1, form=".0f"),
            self._row("random directions", moved, n_draws=CONTROL_DRAWS, form=".1f"),
            self._row("numbers", numbers, n_draws=1, form=".0f"),
        )

    def _row(
        self, name: str, counts: Sequence[AnswerCounts], n_draws: int, form: str
    ) -> tuple[str, ...]:
        """Return the numbers of answers of each kind, averaged over draws."""
        exchanged, others, kept = (
            sum(getattr(own, kind) for own in counts) / n_draws
            for kind in ("exchanged", "otherwise", "kept")
        )
        others /= len(EXCHANGES) - 1
        row = (f"{exchanged:{form}}", f"{others:.1f}", f"{kept:{form}}")
        return (f"{name}, {self.where}", str(self.n), *row)

    def _verdict(self) -> str:
        tests = {"other exchanges": self.against_others, "random directions": self.against_moved}
        numbers = ", ".join(f"{name}: p = {test.p_value:.2g}" for name, test in tests.items())
        sides = "" if self.sides is None else f"; {self._sides(self.sides)}"
        if self.follows:
            found = "the answer follows the places more often than in both controls"
        else:
            found = "it is not clear that the answer follows the places"
        followed = sum(exchange.numbers.exchanged for exchange in self.exchanges) / self.n
        return f"{found} ({numbers}); it follows numbers in {followed:.0%} of the cases{sides}."

    def _sides(self, sides: SideContrast) -> str:
        return (
            f"{sides.verdict} (points of answers, {sides.n_sets} sets of digits: kept "
            f"{sides.kept}, flipped {sides.flipped})"
        )

    def values(self) -> Values:
        """Return the numbers and the verdicts."""
        sides = self.sides and {**vars(self.sides), "verdict": self.sides.verdict}
        return {**vars(self), "n": self.n, "follows": self.follows, "sides": sides}

    @property
    def follows(self) -> bool:
        """Whether the answer follows exchanged places more often than in both controls."""
        return max(self.against_moved.p_value, self.against_others.p_value) <= LARGEST_P

    def side_rows(self) -> tuple[tuple[str, ...], ...]:
        """Return the shares of kept and of flipped answers after copies."""
        if self.sides is None:
            return ()
        copies = {"c at b, d at a": self.sides.reversed, "c at a, d at b": self.sides.unreversed}
        rows = []
        for name, own in copies.items():
            shares = (own.kept, own.moved_kept, own.flipped, own.moved_flipped)
            rows.append((f"{name}, {self.where}", *(f"{share:.0%}" for share in shares)))
        return tuple(rows)


@dataclass(frozen=True, kw_only=True)
class InterchangeResult(Result):
    """The effect of exchanging the roles of numbers, in each layer and in all layers."""

    interchanges: tuple[LayerInterchange, ...]

    name = "interchange"

    def summary(self) -> list[str]:
        """Return a line for each choice of layers."""
        return [found.summary() for found in self.interchanges]

    def tables(self) -> list[ResultTable]:
        """Return the counts and the shares of answers, if any question counts."""
        counted = [found for found in self.interchanges if found.n]
        if not counted:
            return []
        answers = ResultTable(
            title="Right answers after roles were changed",
            columns=("roles", "answers", "exchanged", "another exchange", "as before"),
            rows=tuple(row for found in counted for row in found.rows()),
            note="places: each of two numbers has the role that it has at the place of the other. "
            "random directions: roles moved as far, mean of "
            f"{CONTROL_DRAWS} draws. numbers: each place has the role that it has with the other "
            "number. exchanged: right for the question with these numbers exchanged. another "
            "exchange: mean of the other exchanges. The rest are other answers.",
        )
        sides = ResultTable(
            title="Answers after roles were copied to the denominator's numbers",
            columns=("roles", "kept", "moved, kept", "flipped", "moved, flipped"),
            rows=tuple(row for found in counted for row in found.side_rows()),
            note="c at b, d at a: c has the role that it has at the place of b, or d that at the "
            "place of a, which are on the same side if sides are reversed in the denominator c/d. "
            "c at a, d at b: on the same side if they are not. kept: right answers. flipped: right "
            "if that number were on the other side. moved: the role moved as far in random "
            "directions.",
        )
        return [answers, sides]

    def values(self) -> Values:
        """Return the numbers."""
        return {"interchanges": [found.values() for found in self.interchanges]}
