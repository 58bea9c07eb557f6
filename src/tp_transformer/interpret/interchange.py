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
and after the numbers themselves are exchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret import operations
from tp_transformer.interpret.nested import NestedFraction
from tp_transformer.interpret.operations import Operation, as_far, swapped
from tp_transformer.interpret.outcome import Values
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import Interval, holm, mcnemar_exact, wilson

Ids = npt.NDArray[np.int64]

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
class SignTest:
    """The sign test over questions of exchanged answers being as frequent as a control's.

    Attributes:
        more: questions with more of them, over all exchanges
        fewer: questions with fewer
        p_value: of both being as likely, raised for the number of tests (Holm)
    """

    more: int
    fewer: int
    p_value: float

    @classmethod
    def of(cls, ahead: Ids) -> "SignTest":
        """By how much each question is ahead of the control; not yet raised."""
        more, fewer = int((ahead > 0).sum()), int((ahead < 0).sum())
        return cls(more=more, fewer=fewer, p_value=mcnemar_exact(more, fewer))

    @property
    def is_passed(self) -> bool:
        """Whether they are clearly more frequent."""
        return self.p_value <= LARGEST_P and self.more > self.fewer


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
    against_moved: SignTest
    against_others: SignTest

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return asdict(self)

    @property
    def meaning(self) -> str:
        """What it says, in a line."""
        where = f"layer {self.layers[0]}" if len(self.layers) == 1 else "every layer"
        n = sum(one.n for one in self.exchanges)
        if not n:
            said = "there is no question that it answers before and after numbers are exchanged."
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
        if all(one.is_passed for one in tests.values()):
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
        _interchange(model, asked, known, layers, seed)
        for layers in dict.fromkeys([(layer,), every])
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


def _known(model: Transformer, asked: Sequence[NestedFraction]) -> dict[str, list[int]]:
    """For each two letters the numbers of the questions it answers as they are and exchanged."""

    def is_right(questions: Sequence[NestedFraction]) -> list[bool]:
        said = model.solve([one.question for one in questions])
        return [one.answer == answer for one, answer in zip(questions, said, strict=True)]

    before = is_right(asked)
    after = {letters: is_right([one.exchanged(letters) for one in asked]) for letters in EXCHANGES}
    return {
        letters: [number for number, both in enumerate(zip(before, own, strict=True)) if all(both)]
        for letters, own in after.items()
    }


def _interchange(
    model: Transformer,
    asked: Sequence[NestedFraction],
    known: Mapping[str, Sequence[int]],
    layers: tuple[int, ...],
    seed: int,
) -> Interchange:
    """What becomes of the answers; p-values are not yet raised."""
    of_moved, of_others = np.zeros((2, len(asked)), int)  # how far ahead each question is of them
    exchanges = []
    for letters, numbers in known.items():
        own = [asked[number] for number in numbers]
        swap = swapped(seed, [[one.position(letter) for letter in letters] for one in own])
        after_swap = _said_as(model, own, layers, swap)
        draws = [
            _said_as(model, own, layers, as_far(seed + draw, swap)) for draw in range(CONTROL_DRAWS)
        ]
        after_move = {as_if: np.stack([one[as_if] for one in draws]) for as_if in after_swap}
        others = sum(after_swap[other] for other in EXCHANGES if other != letters)
        of_moved[numbers] += CONTROL_DRAWS * after_swap[letters] - after_move[letters].sum(axis=0)
        of_others[numbers] += (len(EXCHANGES) - 1) * after_swap[letters] - others
        exchanges.append(
            Exchanged(
                letters=letters,
                n=len(own),
                swapped=_answers(after_swap, letters),
                moved=_answers(after_move, letters),
            )
        )
    return Interchange(
        layers=layers,
        exchanges=tuple(exchanges),
        against_moved=SignTest.of(of_moved),
        against_others=SignTest.of(of_others),
    )


def _said_as(
    model: Transformer,
    asked: Sequence[NestedFraction],
    layers: tuple[int, ...],
    operation: Operation,
) -> dict[str, Ids]:
    """Of each question 1 where the answer is that after an exchange; no letters are no exchange."""
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
    wanted = {
        letters: [one.exchanged(letters).answer if letters else one.answer for one in asked]
        for letters in ("", *EXCHANGES)
    }
    return {
        letters: np.array([a == b for a, b in zip(answers, said, strict=True)], int)
        for letters, answers in wanted.items()
    }


def _answers(said_as: Mapping[str, Ids], letters: str) -> Answers:
    exchanged = int(said_as[letters].sum())
    n = said_as[letters].shape[-1]  # questions, of which a control has several draws
    draws = said_as[letters].size // n if n else 1
    return Answers(
        exchanged=exchanged,
        # Draws of the same question are no further questions.
        exchanged_interval=wilson(round(exchanged / draws), n) if n else None,
        otherwise=sum(int(said_as[other].sum()) for other in EXCHANGES if other != letters),
        kept=int(said_as[""].sum()),
    )
