"""The roles of two numbers exchanged: is the answer then that of the numbers exchanged?

In (a/b)/(c/d), the roles that a layer's heads have at two of the four numbers change places, while
all else, the fillers too, stays where it is. If a role is what says where in the structure a number
stands, and nothing else does, the model now answers as if the two numbers had changed places. It
need not: the state that the bound vectors are added to knows the position, too, and so do other
layers. So roles are exchanged in one layer, and in all of them at once. The control moves the roles
of the same two numbers as far, but in random directions.

Only those exchanges count that change the value, and only questions that the model answers before
and after the numbers themselves are exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.nested import NestedFraction, sample_of
from tp_transformer.interpret.operations import Operation, as_far, ask, swapped
from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.record import Sample
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import (
    Agreement,
    Interval,
    holm,
    mcnemar_exact,
    wilson,
)

Bools = npt.NDArray[np.bool_]

EXCHANGES = ("ab", "ac", "bd", "cd")  # those that change the value
LARGEST_P = 0.05  # that counts as clear


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Of some questions, how many are answered as if numbers were exchanged, how many as before."""

    exchanged: int
    exchanged_interval: Interval  # of the share, 95% (Wilson)
    kept: int


@dataclass(frozen=True, kw_only=True)
class Interchange:
    """What exchanging the roles of two numbers does to the answers.

    Attributes:
        letters: which two
        layers: in which
        n: questions that are answered before and after the numbers themselves are exchanged
        swapped: answers after the roles are exchanged; None without such questions
        moved: answers after the roles are moved as far in random directions
        p_value: of `exchanged` being as frequent in both, McNemar's exact test, raised for the
            number of tests (Holm)
    """

    letters: str
    layers: tuple[int, ...]
    n: int
    swapped: Answers | None
    moved: Answers | None
    p_value: float

    @property
    def is_clear(self) -> bool:
        """Whether exchanged roles clearly lead to the exchanged answer."""
        if self.swapped is None or self.moved is None:
            return False
        return self.p_value <= LARGEST_P and self.swapped.exchanged > self.moved.exchanged

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            **vars(self),
            "swapped": self.swapped and vars(self.swapped),
            "moved": self.moved and vars(self.moved),
        }


def interchanges(
    model: Transformer, asked: Sequence[NestedFraction], *, layer: int, seed: int = 0
) -> tuple[Interchange, ...]:
    """Exchange roles in a layer and in all; without roles there is nothing to exchange."""
    if model.config.binding == "none":
        return ()
    every = tuple(range(model.config.n_layers))
    found, agreements = [], []
    for letters in EXCHANGES:
        known = _known(model, asked, letters)
        for layers in dict.fromkeys([(layer,), every]):
            one, agreement = _interchange(model, known, letters, layers, seed)
            found.append(one)
            agreements.append(agreement)
    p_values = holm([mcnemar_exact(one.only_first, one.only_second) for one in agreements])
    return tuple(
        replace(one, p_value=p_value) for one, p_value in zip(found, p_values, strict=True)
    )


def _known(
    model: Transformer, asked: Sequence[NestedFraction], letters: str
) -> list[NestedFraction]:
    """The questions that the model answers as they are and with numbers exchanged."""
    after = [one.exchanged(letters) for one in asked]
    right = [ask(model, sample_of(each, "nested fractions")).right for each in (asked, after)]
    return [one for one, is_right in zip(asked, right[0] & right[1], strict=True) if is_right]


def _interchange(
    model: Transformer,
    known: Sequence[NestedFraction],
    letters: str,
    layers: tuple[int, ...],
    seed: int,
) -> tuple[Interchange, Agreement]:
    """What becomes of the answers; the p-value is not yet known."""
    swap = swapped(seed, [[one.position(letter) for letter in letters] for one in known])
    became: list[Bools] = []
    answers: list[Answers | None] = []
    for operation in (swap, as_far(seed, swap)):
        exchanged, kept = _said(model, known, letters, layers, operation)
        became.append(exchanged)
        answers.append(
            Answers(
                exchanged=int(exchanged.sum()),
                exchanged_interval=wilson(int(exchanged.sum()), len(known)),
                kept=int(kept.sum()),
            )
            if known
            else None
        )
    one = Interchange(
        letters=letters,
        layers=layers,
        n=len(known),
        swapped=answers[0],
        moved=answers[1],
        p_value=1.0,
    )
    return one, Agreement.of(*became)


def _said(
    model: Transformer,
    known: Sequence[NestedFraction],
    letters: str,
    layers: tuple[int, ...],
    operation: Operation,
) -> tuple[Bools, Bools]:
    """Whether each question is answered as if numbers were exchanged, and whether as before."""
    if not known:
        return np.zeros(0, bool), np.zeros(0, bool)
    before = sample_of(known, "nested fractions")
    after = Sample(
        questions=before.questions,
        answers=tuple(one.exchanged(letters).answer for one in known),
        origin=before.origin,
    )
    heads = range(model.config.n_heads)
    exchanged, kept = (
        ask(model, sample, layers=layers, heads=heads, operation=operation).right
        for sample in (after, before)
    )
    return exchanged, kept


def meaning_of(found: Sequence[Interchange]) -> list[str]:
    """What it says, a line for the one layer and one for all of them."""
    lines = []
    for layers in dict.fromkeys(one.layers for one in found):
        own = [one for one in found if one.layers == layers]
        where = f"layer {layers[0]}" if len(layers) == 1 else "every layer"
        lines.append(f"Roles of two numbers exchanged in {where}: {_counted(own)}")
    return lines


def _counted(own: Sequence[Interchange]) -> str:
    n = sum(one.n for one in own)
    if not n:
        return "there is no question that it answers before and after numbers are exchanged."
    (exchanged, kept), (control, control_kept) = (
        (
            sum(answers.exchanged for answers in each if answers is not None),
            sum(answers.kept for answers in each if answers is not None),
        )
        for each in ([one.swapped for one in own], [one.moved for one in own])
    )
    clear = [f"{one.letters[0]} and {one.letters[1]}" for one in own if one.is_clear]
    verdict = (
        f"That is clearly more than the control for {', '.join(clear)}"
        if clear
        else "That is for no two numbers clearly more than the control"
    )
    return (
        f"of {n} answers the model gives {exchanged} as if the numbers were exchanged and "
        f"{kept} as before; with roles moved as far in random directions, {control} and "
        f"{control_kept}. {verdict} (McNemar's exact test, corrected for all such tests)."
    )
