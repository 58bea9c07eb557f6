"""The roles of two numbers exchanged: is the answer then that of the numbers exchanged?

In (a/b)/(c/d), the roles that a layer's heads have at two of the four numbers change places, while
all else, the fillers too, stays where it is. If a role is what says where in the structure a number
stands, and nothing else does, the model now answers as if the two numbers had changed places. It
need not: the state that the bound vectors are added to knows the position, too, and so do other
layers. So roles are exchanged in one layer, and in all of them at once: there the roles of a layer
are those that it makes of states which exchanges below have already changed.

There are two controls. The roles of the same two numbers are moved as far, but in random
directions: that tells an exchange from a disturbance. And the answers after an exchange of roles
are compared with those to other exchanges of numbers: that tells an answer that follows the
exchange from one that a disturbed model is likely to give anyway.

Only those exchanges count that change the value, and only questions that the model answers before
and after each exchange of the numbers themselves.

There are four such exchanges and three draws of directions. If it makes no difference which roles
are exchanged, one in four of all answers that belong to an exchange belong to this one; if it makes
none whether they are exchanged or moved, one in four of the exchanged answers comes after an
exchange. Both are tested by the binomial distribution. (Answers to the same question are alike,
which makes the counts more even than binomial ones, and the test a careful one.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tp_transformer.interpret import operations
from tp_transformer.interpret.nested import NestedFraction
from tp_transformer.interpret.operations import Operation, as_far, swapped
from tp_transformer.interpret.outcome import Values
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import Interval, binomial_at_least, holm, wilson

EXCHANGES = ("ab", "ac", "bd", "cd")  # those that change the value, each to another one
LARGEST_P = 0.05  # that counts as clear
CONTROL_DRAWS = 3  # of random directions: with one, verdicts hang on the draw


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What some questions are answered as after an operation on the roles of two numbers.

    Attributes:
        exchanged: as if these two numbers were exchanged
        exchanged_interval: of that share, 95% (Wilson); None without questions
        otherwise: as if two others were, all such exchanges together
        kept: as before
    """

    exchanged: int
    exchanged_interval: Interval | None
    otherwise: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """The answers after the roles of two numbers were exchanged.

    Attributes:
        letters: which two
        n: questions that are answered before and after the numbers themselves are exchanged
        swapped: answers after the roles are exchanged
        moved: answers after the roles are moved as far in random directions, `CONTROL_DRAWS` times
    """

    letters: str
    n: int
    swapped: Answers
    moved: Answers  # of each question as many as there are draws


@dataclass(frozen=True, kw_only=True)
class ShareTest:
    """Whether exchanged answers are more of all than chance has it.

    Attributes:
        count: exchanged answers after exchanged roles
        n: these and the control's
        expected: the share that they have by chance
        p_value: of so many or more, raised for the number of tests (Holm)
    """

    count: int
    n: int
    expected: float
    p_value: float

    @classmethod
    def of(cls, count: int, control: int, times: int) -> "ShareTest":
        """Beside a control that had so many times the chances; the p-value is not yet raised."""
        n, expected = count + control, 1 / (1 + times)
        p_value = binomial_at_least(count, n, expected)
        return cls(count=count, n=n, expected=expected, p_value=p_value)


@dataclass(frozen=True, kw_only=True)
class Interchange:
    """What exchanging the roles of numbers does to the answers.

    Attributes:
        layers: where
        exchanges: for each two numbers
        against_moved: exchanged answers after exchanged roles beside those after the control
        against_others: beside the average of the answers to other exchanges
    """

    layers: tuple[int, ...]
    exchanges: tuple[Exchanged, ...]
    against_moved: ShareTest
    against_others: ShareTest

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return asdict(self)

    @property
    def meaning(self) -> str:
        """What it says, in a line."""
        where = f"layer {self.layers[0]}" if len(self.layers) == 1 else "every layer"
        n = sum(one.n for one in self.exchanges)
        if not n:
            said = "there is no question that it answers before and after each exchange of numbers."
        else:
            said = f"of {n} answers {self._counted} {self._verdict}"
        return f"Roles of two numbers exchanged in {where}: {said}"

    @property
    def _counted(self) -> str:
        swapped = [one.swapped for one in self.exchanges]
        others = sum(one.otherwise for one in swapped) / (len(EXCHANGES) - 1)
        return (
            f"the model gives {sum(one.exchanged for one in swapped)} as if these numbers were "
            f"exchanged, {others:.1f} as if two others were (the average of the other exchanges), "
            f"and {sum(one.kept for one in swapped)} as before; with roles moved as far in random "
            f"directions ({CONTROL_DRAWS} draws), {self._moved('exchanged'):.1f} as if they were "
            f"exchanged and {self._moved('kept'):.1f} as before. What is left is other answers."
        )

    def _moved(self, name: str) -> float:
        """So many answers of the control, on average over its draws."""
        return sum(getattr(one.moved, name) for one in self.exchanges) / CONTROL_DRAWS

    @property
    def _verdict(self) -> str:
        tests = {"the others": self.against_others, "random directions": self.against_moved}
        numbers = ", ".join(f"{name}: p = {one.p_value:.2g}" for name, one in tests.items())
        if all(one.p_value <= LARGEST_P for one in tests.values()):
            return f"The answer follows the roles more often than both controls ({numbers})."
        return f"That the answer follows the roles is not clear ({numbers})."


def interchanges(
    model: Transformer, asked: Sequence[NestedFraction], *, layer: int, seed: int = 0
) -> tuple[Interchange, ...]:
    """Exchange roles in a layer and in all; without roles there is nothing to exchange."""
    if model.config.binding == "none":
        return ()
    known = _known(model, asked)
    every = tuple(range(model.config.n_layers))
    found = [
        _interchange(model, known, layers, seed) for layers in dict.fromkeys([(layer,), every])
    ]
    tests = [test for one in found for test in (one.against_moved, one.against_others)]
    raised = [
        replace(test, p_value=p_value)
        for test, p_value in zip(tests, holm([test.p_value for test in tests]), strict=True)
    ]
    return tuple(
        replace(one, against_moved=moved, against_others=others)
        for one, moved, others in zip(found, raised[::2], raised[1::2], strict=True)
    )


def _known(model: Transformer, asked: Sequence[NestedFraction]) -> list[NestedFraction]:
    """The questions that it answers as they are and after each exchange of their numbers."""
    variants = [asked, *([one.exchanged(letters) for one in asked] for letters in EXCHANGES)]
    said = [model.solve([one.question for one in own]) for own in variants]
    is_right = [
        [one.answer == answer for one, answer in zip(own, answers, strict=True)]
        for own, answers in zip(variants, said, strict=True)
    ]
    return [one for one, *right in zip(asked, *is_right, strict=True) if all(right)]


def _interchange(
    model: Transformer, known: Sequence[NestedFraction], layers: tuple[int, ...], seed: int
) -> Interchange:
    """What becomes of the answers; p-values are not yet raised."""
    exchanges = []
    for letters in EXCHANGES:
        swap = swapped(seed, [[one.position(letter) for letter in letters] for one in known])
        draws = [
            _said_as(model, known, layers, as_far(seed + draw, swap))
            for draw in range(CONTROL_DRAWS)
        ]
        exchanges.append(
            Exchanged(
                letters=letters,
                n=len(known),
                swapped=_answers([_said_as(model, known, layers, swap)], letters),
                moved=_answers(draws, letters),
            )
        )
    exchanged = sum(one.swapped.exchanged for one in exchanges)
    moved = sum(one.moved.exchanged for one in exchanges)
    others = sum(one.swapped.otherwise for one in exchanges)
    return Interchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=ShareTest.of(exchanged, moved, CONTROL_DRAWS),
        against_others=ShareTest.of(exchanged, others, len(EXCHANGES) - 1),
    )


def _said_as(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: tuple[int, ...],
    operation: Operation,
) -> dict[str, int]:
    """How many answers are those after each exchange, after none (no letters), and of how many."""
    said = (
        operations.solve(
            model,
            [one.question for one in asked],
            layers=layers,
            heads=range(model.config.n_heads),
            operation=operation,
        )
        if asked
        else []
    )
    found = {
        letters: sum(
            (one.exchanged(letters) if letters else one).answer == answer
            for one, answer in zip(asked, said, strict=True)
        )
        for letters in ("", *EXCHANGES)
    }
    return {"n": len(asked), **found}


def _answers(draws: Sequence[Mapping[str, int]], letters: str) -> Answers:
    """The answers of all draws; one of the same question in another draw is no further question."""
    n = draws[0]["n"]
    exchanged = sum(one[letters] for one in draws)
    return Answers(
        exchanged=exchanged,
        exchanged_interval=wilson(round(exchanged / len(draws)), n) if n else None,
        otherwise=sum(one[other] for one in draws for other in EXCHANGES if other != letters),
        kept=sum(one[""] for one in draws),
    )
