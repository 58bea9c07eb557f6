"""Roles of two numbers exchanged: whether the answer follows them, and which ones are alike.

In (a/b)/(c/d), the roles that the heads of a layer, or of all layers at once, have at two of the
four numbers are replaced; everything else, fillers included, is unchanged. A role may encode the
place of a number in the structure, and the number itself. Each role therefore comes from the
question in which the two numbers are exchanged:

- *places exchanged*: each number gets the role that it has at the other place. If roles encode
  places, the model now answers as if the two numbers were exchanged. It need not: the state to
  which bound vectors are added also encodes the position, and so do other layers.
- *numbers exchanged*: each place gets the role that it has with the other number. If the model now
  answers as if the two numbers were exchanged, its roles encode numbers.

**Whether the answer follows places** is tested against roles that are moved as far in random
directions, three times, and against the answers to other exchanges. Only the four exchanges that
change the value count: by chance, one in four of all answers that belong to an exchange belongs to
this one, and one in four of the exchanged answers comes after an exchange. Both are tested by the
binomial distribution. (Answers to the same question are similar, so counts vary less than binomial
ones, and the test is conservative.)

**Whether sides are reversed** in the denominator c/d (section 5.1) is tested by copies of roles
from a and b, where both labels agree, to c and d. Where the two places have the same side, the
answer should be kept, and where not, it should be flipped: the one that is right if the number were
on the other side. If roles encode each place, no copy keeps the answer.

docs/interpretation.md has the method in full.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom

from tp_transformer import figures
from tp_transformer.interpret.analyses import InterchangeOptions, head_indices, layer_indices
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.chart import ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.operations import RoleOperation, as_far, moved_from, role_of
from tp_transformer.interpret.core.record import Activations, Floats, record
from tp_transformer.interpret.core.result import (
    Context,
    Result,
    ResultTable,
    Values,
    ratio_interval,
)
from tp_transformer.interpret.core.sample import (
    MOST_FRACTIONS,
    NestedFraction,
    Sample,
    drawn_sample,
    nested_fractions,
    nested_sample,
    read_fractions,
)
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import CONFIDENCE, Interval, holm, wilson

EXCHANGES = ("ab", "ac", "bd", "cd")  # those that change the value
# Copies of the role at the place of the first number to the second, in the denominator c/d: from
# the place that is on the same side if sides are reversed there, and from the one that is if not.
REVERSED_COPIES, UNREVERSED_COPIES = ("bc", "ad"), ("ac", "bd")
LARGEST_P = 0.05  # largest p-value of a clear result
CONTROL_DRAWS = 3  # draws of random directions: with one, verdicts depend on the draw

LOOKS = {
    "as exchanged": look("o", "blue"),
    "as two others exchanged": look("x", "red"),
    "as exchanged, random directions": look("o", "blue", is_hollow=True),
    "as before": look("s", "#808080", size=2),
    "as exchanged, numbers": look("^", "orange"),
}
READING = (
    "Answers after two numbers got the roles that they have at the other's place: as if these "
    "numbers were exchanged (filled), as if two others were (cross, mean of the other exchanges), "
    "as before (square). Hollow: as if these were, after their roles were moved as far in random "
    f"directions, {CONTROL_DRAWS} times. Triangle: as if these were, after two places got the "
    "roles that they have with the other number. Lines: 95% Wilson intervals. n: questions "
    "answered before and after the numbers themselves are exchanged."
)

Answers = tuple[list[list[str]], list[list[str]]]  # after an operation; in each draw of its control
Answered = Mapping[str, list[str]]  # by pair of numbers: the answer to each question


@dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """The number of answers of each kind after an operation on the roles of two numbers."""

    exchanged: int  # right answers to the question with these two numbers exchanged
    exchanged_interval: Interval | None  # 95% of their share (Wilson); None without questions
    otherwise: int  # right answers to the questions with two other numbers exchanged
    kept: int  # right answers to the question itself


@dataclass(frozen=True, kw_only=True)
class RoleExchange:
    """The answers after the roles of two numbers were exchanged."""

    letters: str  # the two numbers
    n: int  # questions that are answered before and after each exchange of the numbers themselves
    places: AnswerCounts  # after each number gets the role that it has at the other place
    moved: AnswerCounts  # after the roles are moved as far in random directions, in all draws
    numbers: AnswerCounts  # after each place gets the role that it has with the other number

    @property
    def points(self) -> list[tuple[float | None, Interval | None]]:
        """The shares of answers, with intervals, in the order of LOOKS."""
        places, moved, numbers, n = self.places, self.moved, self.numbers, self.n
        if not n:
            return [(None, None)] * len(LOOKS)
        return [
            (places.exchanged / n, places.exchanged_interval),
            (places.otherwise / (len(EXCHANGES) - 1) / n, None),
            (moved.exchanged / (CONTROL_DRAWS * n), moved.exchanged_interval),
            (places.kept / n, None),
            (numbers.exchanged / n, numbers.exchanged_interval),
        ]


@dataclass(frozen=True, kw_only=True)
class ShareTest:
    """A binomial test of the share of exchanged answers."""

    count: int  # exchanged answers after exchanged places
    n: int  # these and those of the control
    expected: float  # the expected share
    p_value: float  # probability of `count` or more, Holm-adjusted

    @classmethod
    def of(cls, count: int, control: int, times: int) -> "ShareTest":
        """Compare with a control that had `times` as many chances; the p-value is not adjusted."""
        n, expected = count + control, 1 / (1 + times)
        p_value = float(binom.sf(count - 1, n, expected))
        return cls(count=count, n=n, expected=expected, p_value=p_value)


@dataclass(frozen=True, kw_only=True)
class CopiedRoles:
    """Shares of the answers after roles were copied to the numbers of the denominator.

    Flipped answers are right if the number to which a role was copied were on the other side.
    """

    kept: float  # right answers
    flipped: float
    moved_kept: float  # right answers after the role was moved as far in random directions
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
    """Which roles the numbers of the denominator c/d can have without a change of the answer."""

    reversed: CopiedRoles  # from places on the same reversed side: c at b, d at a
    unreversed: CopiedRoles  # from places on the same unreversed side: c at a, d at b
    n_sets: int  # number of sets of four digits
    kept: Contrast  # kept beyond the control, after reversed minus after unreversed copies
    flipped: Contrast  # flipped beyond the control, after unreversed minus after reversed copies

    @property
    def verdict(self) -> str:
        """Whether roles act as sides, and which: answers must be kept and flipped accordingly."""
        side = {1: "reversed", -1: "unreversed"}.get(self.kept.sign)
        if side is None:
            return "it is not clear that roles act as sides"
        if self.flipped.sign != self.kept.sign:
            return f"copies from the same {side} side disturb less, but the answer follows no side"
        return f"roles act as {side} sides"

    def values(self) -> Values:
        return {**vars(self), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class LayerInterchange:
    """The effect of exchanging the roles of numbers in some layers."""

    layers: tuple[int, ...]
    exchanges: tuple[RoleExchange, ...]  # the answers for each pair of numbers
    against_moved: ShareTest  # against roles that are moved in random directions
    against_others: ShareTest  # against the answers to other exchanges
    sides: SideContrast | None  # whether sides are reversed; None without questions

    @property
    def where(self) -> str:
        """The layers in words."""
        return f"layer {self.layers[0]}" if len(self.layers) == 1 else "all layers at once"

    @property
    def n(self) -> int:
        """The number of answers, of all exchanges together."""
        return sum(exchange.n for exchange in self.exchanges)

    @property
    def follows(self) -> bool:
        """Whether the answer follows exchanged places more often than in both controls."""
        return max(self.against_moved.p_value, self.against_others.p_value) <= LARGEST_P

    def values(self) -> Values:
        return {**vars(self), "n": self.n, "follows": self.follows}

    def summary(self) -> str:
        """Return the verdicts and the tests in one line."""
        about = f"Roles of two numbers exchanged in {self.where}"
        if not self.n:
            none = "the model answers no question before and after each exchange of numbers"
            return f"{about}: {none}."
        if self.follows:
            verdict = "the answer follows the places more often than in both controls"
        else:
            verdict = "it is not clear that the answer follows the places"
        followed = sum(exchange.numbers.exchanged for exchange in self.exchanges) / self.n
        line = (
            f"{about}: {verdict} (other exchanges: p = {self.against_others.p_value:.2g}, random "
            f"directions: p = {self.against_moved.p_value:.2g}); it follows numbers in "
            f"{followed:.0%} of the cases"
        )
        if (sides := self.sides) is None:
            return f"{line}."
        return (
            f"{line}; {sides.verdict} (points of answers, {sides.n_sets} sets of digits: kept "
            f"{sides.kept}, flipped {sides.flipped})."
        )

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Iterate over the counts of answers after exchanges, averaged over draws."""
        for name, field, n_draws, form in (
            ("places", "places", 1, ".0f"),
            ("random directions", "moved", CONTROL_DRAWS, ".1f"),
            ("numbers", "numbers", 1, ".0f"),
        ):
            counts = [getattr(exchange, field) for exchange in self.exchanges]
            exchanged = sum(count.exchanged for count in counts) / n_draws
            others = sum(count.otherwise for count in counts) / n_draws / (len(EXCHANGES) - 1)
            kept = sum(count.kept for count in counts) / n_draws
            cells = (f"{exchanged:{form}}", f"{others:.1f}", f"{kept:{form}}")
            yield f"{name}, {self.where}", str(self.n), *cells

    def side_rows(self) -> Iterator[tuple[str, ...]]:
        """Iterate over the shares of kept and of flipped answers after copies."""
        if self.sides is not None:
            copied = {
                "c at b, d at a": self.sides.reversed,
                "c at a, d at b": self.sides.unreversed,
            }
            for name, x in copied.items():
                shares = (x.kept, x.moved_kept, x.flipped, x.moved_flipped)
                yield f"{name}, {self.where}", *(f"{share:.0%}" for share in shares)


@dataclass(frozen=True, kw_only=True)
class InterchangeResult(Result):
    """The effect of exchanging the roles of numbers, in each layer and in all layers."""

    interchanges: tuple[LayerInterchange, ...]

    name = "interchange"

    def summary(self) -> list[str]:
        return [panel.summary() for panel in self.interchanges]

    def tables(self) -> list[ResultTable]:
        counted = [panel for panel in self.interchanges if panel.n]
        if not counted:
            return []
        answers = ResultTable(
            title="Right answers after roles were changed",
            columns=("roles", "answers", "exchanged", "another exchange", "as before"),
            rows=tuple(row for panel in counted for row in panel.rows()),
            note="places: each of two numbers has the role that it has at the place of the other. "
            "random directions: roles moved as far, mean of "
            f"{CONTROL_DRAWS} draws. numbers: each place has the role that it has with the other "
            "number. exchanged: right for the question with these numbers exchanged. another "
            "exchange: mean of the other exchanges. The rest are other answers.",
        )
        sides = ResultTable(
            title="Answers after roles were copied to the denominator's numbers",
            columns=("roles", "kept", "moved, kept", "flipped", "moved, flipped"),
            rows=tuple(row for panel in counted for row in panel.side_rows()),
            note="c at b, d at a: c has the role that it has at the place of b, or d that at the "
            "place of a, which are on the same side if sides are reversed in the denominator c/d. "
            "c at a, d at b: on the same side if they are not. kept: right answers. flipped: right "
            "if that number were on the other side. moved: the role moved as far in random "
            "directions.",
        )
        return [answers, sides]

    def plot(self) -> "dict[str, figures.Figure]":
        if not any(panel.n for panel in self.interchanges):
            return {}
        panels = [
            ChartPanel(
                title=f"roles exchanged in {panel.where}",
                rows=[f"{x.letters[0]} ↔ {x.letters[1]}\nn = {x.n}" for x in panel.exchanges],
                marks=[
                    Marks(label, LOOKS[label], *zip(*points, strict=True))
                    for label, *points in zip(
                        LOOKS, *(x.points for x in panel.exchanges), strict=True
                    )
                ],
            )
            for panel in self.interchanges
        ]
        caption = f"{READING} {self.context.caption}"
        return {"interchange": chart(panels, axis="share of the answers", caption=caption)}


def analyse(
    model: Transformer, sample: Sample, options: InterchangeOptions, seed: int
) -> InterchangeResult:
    """Exchange roles in one layer, or in each, and in all layers at once."""
    heads = head_indices(options.head, model.config.n_heads)
    layers = layer_indices(options.layer, model.config.n_layers)
    return InterchangeResult(
        context=Context.of(model, sample, seed),
        interchanges=interchanges(model, read_fractions(sample), layers, heads, seed),
    )


def interchanges(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: Iterable[int],
    heads: Sequence[int],
    seed: int,
) -> tuple[LayerInterchange, ...]:
    """Exchange the roles of some heads in each layer and in all at once; adjust all p-values."""
    known = _known(model, asked)
    all_layers = tuple(range(model.config.n_layers))
    choices = dict.fromkeys([*((layer,) for layer in layers), all_layers])
    confidence = 1 - (1 - CONFIDENCE) / len(choices)  # Bonferroni
    panels = [_interchange(model, known, chosen, heads, seed, confidence) for chosen in choices]
    tests = [test for panel in panels for test in (panel.against_moved, panel.against_others)]
    adjusted = [
        replace(test, p_value=p_value)
        for test, p_value in zip(tests, holm([test.p_value for test in tests]), strict=True)
    ]
    return tuple(
        replace(panel, against_moved=moved, against_others=others)
        for panel, moved, others in zip(panels, adjusted[::2], adjusted[1::2], strict=True)
    )


def exchangeable_sample(model: Transformer, count: int, seed: int) -> Sample:
    """Draw nested fractions that a model answers before and after each exchange of two numbers.

    If it answers no such fraction, they are any.
    """
    known = _known(model, nested_fractions(MOST_FRACTIONS, seed))[:count]
    if not known:
        return drawn_sample(count, seed)
    which = f"all of {MOST_FRACTIONS:,} that it" if len(known) < count else "which it"
    return nested_sample(
        known,
        f"nested fractions of digits (seed {seed}), {which} answers before and after each exchange "
        "of two numbers",
    )


def _known(model: Transformer, asked: Sequence[NestedFraction]) -> list[NestedFraction]:
    """Return the questions that are answered before and after each exchange of their numbers."""
    # In (4/6)/(3/2), two exchanges have the same answer.
    known = [
        fraction
        for fraction in asked
        if len({fraction.exchanged(pair).answer for pair in EXCHANGES}) == len(EXCHANGES)
    ]
    for pair in track("asking with numbers exchanged", ("", *EXCHANGES)):
        variants = [fraction.exchanged(pair) if pair else fraction for fraction in known]
        answers = model.solve([variant.question for variant in variants]) if known else []
        known = [
            fraction
            for fraction, variant, answer in zip(known, variants, answers, strict=True)
            if variant.answer == answer
        ]
    return known


def _interchange(
    model: Transformer,
    known: Sequence[NestedFraction],
    layers: tuple[int, ...],
    heads: Sequence[int],
    seed: int,
    confidence: float,
) -> LayerInterchange:
    """Count the answers for each pair of numbers; p-values are not adjusted yet."""
    questions = [fraction.question for fraction in known]

    def answers(replacements: Mapping[int, RoleOperation]) -> list[str]:
        if not known:
            return []
        return operations.solve(model, questions, heads=heads, operations=replacements)

    def answers_after(replacements: Mapping[int, RoleOperation]) -> Answers:
        """Return the answers after an operation, and in each draw of its control."""
        far = [
            answers({layer: as_far(seed + draw, move) for layer, move in replacements.items()})
            for draw in range(CONTROL_DRAWS)
        ]
        return [answers(replacements)], far

    def replacements(pair: str, from_letters: str, to_letters: str) -> dict[int, RoleOperation]:
        """Give roles of the question with a pair exchanged, at some letters, to other letters."""
        roles_of = _roles(model, [fraction.exchanged(pair) for fraction in known], layers, heads)
        sources = [[fraction.position(letter) for letter in from_letters] for fraction in known]
        targets = [[fraction.position(letter) for letter in to_letters] for fraction in known]
        return {layer: moved_from(roles, sources, targets) for layer, roles in roles_of.items()}

    exchanges = []
    for pair in track("exchanging roles", EXCHANGES):
        places, moves = answers_after(replacements(pair, pair[::-1], pair))
        exchanges.append(
            RoleExchange(
                letters=pair,
                n=len(known),
                places=_counts(known, places, pair),
                moved=_counts(known, moves, pair),
                numbers=_counts(known, [answers(replacements(pair, pair, pair))], pair),
            )
        )
    copied = {
        pair: answers_after(replacements(pair, pair[0], pair[1]))
        for pair in track("copying roles", (*REVERSED_COPIES, *UNREVERSED_COPIES))
    }
    exchanged = sum(exchange.places.exchanged for exchange in exchanges)
    moved = sum(exchange.moved.exchanged for exchange in exchanges)
    others = sum(exchange.places.otherwise for exchange in exchanges)
    return LayerInterchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=ShareTest.of(exchanged, moved, CONTROL_DRAWS),
        against_others=ShareTest.of(exchanged, others, len(EXCHANGES) - 1),
        sides=_contrast(known, copied, confidence) if known else None,
    )


def _roles(
    model: Transformer, asked: Sequence[NestedFraction], layers: Sequence[int], heads: Sequence[int]
) -> dict[int, list[Activations]]:
    """Return the roles of some heads in each layer: for each question (head, position, d_head)."""
    if not asked:
        return {layer: [] for layer in layers}
    recording = record(model, nested_sample(asked, ""), [role_of(layer) for layer in layers])
    return {layer: [roles[list(heads)] for roles in recording[role_of(layer)]] for layer in layers}


def _contrast(
    known: Sequence[NestedFraction], copied: Mapping[str, Answers], confidence: float
) -> SideContrast:
    right = {pair: [fraction.answer for fraction in known] for pair in copied}
    flipped = {pair: [fraction.flipped(pair[1]) for fraction in known] for pair in copied}

    def shares(pairs: Sequence[str], wanted: Answered) -> Floats:
        """Return the share of wanted answers: (copied or moved, question)."""
        by_pair = [
            [np.equal(draws, wanted[pair]).mean(axis=0) for draws in copied[pair]] for pair in pairs
        ]
        return np.mean(by_pair, axis=0, dtype=np.float64)

    def copies(pairs: Sequence[str]) -> CopiedRoles:
        kept, moved_kept = shares(pairs, right).mean(axis=1).tolist()
        other, moved_other = shares(pairs, flipped).mean(axis=1).tolist()
        return CopiedRoles(
            kept=kept, flipped=other, moved_kept=moved_kept, moved_flipped=moved_other
        )

    digits = [sorted(fraction.numbers) for fraction in known]
    sets, which = np.unique(digits, axis=0, return_inverse=True)

    def contrast(more: Sequence[str], less: Sequence[str], wanted: Answered) -> Contrast:
        """Compare shares beyond the control after two kinds of copies."""
        (first, moved), (second, moved_second) = shares(more, wanted), shares(less, wanted)
        differences = (first - moved) - (second - moved_second)
        interval = ratio_interval(differences, group=which.ravel(), confidence=confidence)
        return Contrast(value=float(differences.mean()), interval=interval)

    return SideContrast(
        reversed=copies(REVERSED_COPIES),
        unreversed=copies(UNREVERSED_COPIES),
        n_sets=len(sets),
        kept=contrast(REVERSED_COPIES, UNREVERSED_COPIES, right),
        flipped=contrast(UNREVERSED_COPIES, REVERSED_COPIES, flipped),
    )


def _counts(
    known: Sequence[NestedFraction], draws: Sequence[Sequence[str]], pair: str
) -> AnswerCounts:
    """Count the answers of all draws; the interval counts each of the questions once."""
    counts = Counter(
        letters
        for answers in draws
        for fraction, answer in zip(known, answers, strict=True)
        for letters in ("", *EXCHANGES)
        if (fraction.exchanged(letters) if letters else fraction).answer == answer
    )
    n = len(known)
    return AnswerCounts(
        exchanged=counts[pair],
        exchanged_interval=wilson(round(counts[pair] / len(draws)), n) if n else None,
        otherwise=sum(counts[other] for other in EXCHANGES if other != pair),
        kept=counts[""],
    )
