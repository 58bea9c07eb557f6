"""Names for clusters of positions.

Statements about a position name its character or a label of its structure. A statement becomes part
of the name of a cluster if it holds for nearly all positions of the cluster, and if this is more
than chance: the lower end of an interval for its share must exceed the share among all positions
for which the name so far holds. The interval counts questions, not positions, and is corrected for
the number of statements, clusters and heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tp_transformer.figures import END, START
from tp_transformer.interpret.core.relations import ASKED, DEGREE, ITEM, PART, RANK, YES
from tp_transformer.interpret.core.structure import (
    ARGUMENT,
    DENOMINATOR,
    DEPTH,
    DIGIT_PLACE,
    NUMERATOR,
    OPERATOR,
    POINT,
    SIDE,
    SIGN,
)
from tp_transformer.interpret.core.vectors import Booleans, Integers
from tp_transformer.scoring.statistics import wilson

PURITY = 0.8  # least share of the positions of a cluster for which its name holds
FEWEST_POSITIONS = 10
FEWEST_QUESTIONS = 8
LONGEST_NAME = 3  # statements
ERROR = 0.05  # probability that any name is given if there is nothing to name

_OPERATIONS = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}

_TOKENS = {START: "start token", END: "end token", " ": "space"}
# Statements about characters, besides those in quotes.
_ABOUT_CHARACTERS = {"letter", "in a number", SIGN, POINT, *_TOKENS.values()}


@dataclass(frozen=True, kw_only=True)
class Name:
    """The statements that hold for nearly all positions of a cluster."""

    statements: tuple[str, ...]
    purity: float  # share of the positions of the cluster for which all statements hold
    n_positions: int  # in the cluster
    n_questions: int

    @property
    def is_structural(self) -> bool:
        """Whether a statement is about the expression, not only about characters."""
        return any(
            statement[0] != "'" and statement not in _ABOUT_CHARACTERS
            for statement in self.statements
        )

    @property
    def side(self) -> str | None:
        """The side of the fraction that the name has, if it has one."""
        return next((side for side in (NUMERATOR, DENOMINATOR) if side in self.statements), None)

    def __str__(self) -> str:
        return ", ".join(self.statements)

    def values(self) -> dict[str, Any]:
        """Return the numbers, and the statements as one text."""
        values = {**vars(self), "name": str(self), "is_structural": self.is_structural}
        del values["statements"]
        return values


def statements(
    characters: Sequence[str], labels: Mapping[str, Sequence[str | None]]
) -> dict[str, Booleans]:
    """Return every statement with the positions for which it holds."""
    said: dict[str, Booleans] = {}
    for at, character in enumerate(characters):
        label_of = {
            name: value for name, values in labels.items() if (value := values[at]) is not None
        }
        phrases = [_phrase(name, value) for name, value in label_of.items()]
        phrases += ["in a number"] if label_of.get(DIGIT_PLACE) else []
        phrases.append(kind(character))
        for phrase in phrases:
            said.setdefault(phrase, np.zeros(len(characters), dtype=bool))[at] = True
    return dict(sorted(said.items()))


def kind(character: str) -> str:
    """Return what kind of token a character stands for."""
    return "letter" if character.isalpha() else _TOKENS.get(character, f"'{character}'")


def _phrase(label: str, value: str) -> str:
    if label == DIGIT_PLACE:
        return value if value in {SIGN, POINT} else f"{value} digit"
    if label == OPERATOR:
        return f"in {_OPERATIONS[value]}"
    if label == ASKED:
        return "asked for" if value == YES else "not asked for"
    if label in {DEPTH, ITEM, DEGREE}:
        return f"{label} {value}"
    return {SIDE: value, ARGUMENT: f"{value} argument", RANK: f"{value} item", PART: value}[label]


def names(
    clusters: Integers,
    n_clusters: int,
    said: dict[str, Booleans],
    question: Integers,
    n_heads: int = 1,
) -> tuple[Name | None, ...]:
    """Return a name, or None, for each cluster of one of `n_heads` heads."""
    confidence = 1 - ERROR / (n_heads * n_clusters * max(1, len(said)))
    return tuple(
        _name(clusters == number, said, question, confidence) for number in range(n_clusters)
    )


def _name(
    member: Booleans, said: dict[str, Booleans], question: Integers, confidence: float
) -> Name | None:
    n_questions = len(np.unique(question[member]))
    if member.sum() < FEWEST_POSITIONS or n_questions < FEWEST_QUESTIONS:
        return None
    chosen: list[str] = []
    true = np.ones_like(member)  # where all chosen statements hold
    while len(chosen) < LONGEST_NAME:
        margins = {
            phrase: _margin(member, true, holds, question, confidence)
            for phrase, holds in said.items()
            if phrase not in chosen
        }
        best = max(margins, key=margins.__getitem__, default=None)
        if best is None or margins[best] <= 0:
            break
        chosen.append(best)
        true = true & said[best]
    if not chosen:
        return None
    return Name(
        statements=tuple(_without_implied(chosen, said)),
        purity=float(true[member].mean()),
        n_positions=int(member.sum()),
        n_questions=n_questions,
    )


def _margin(
    member: Booleans, true: Booleans, holds: Booleans, question: Integers, confidence: float
) -> float:
    """Return by how much a statement is clearly more frequent in a cluster; 0 if unclear."""
    inside = member & true
    both = inside & holds
    if both.sum() < PURITY * member.sum():
        return 0.0
    n_questions = len(np.unique(question[inside]))
    share = both.sum() / inside.sum()
    low, _ = wilson(round(share * n_questions), n_questions, confidence)
    return float(low - holds[true].mean())


def _without_implied(chosen: list[str], said: dict[str, Booleans]) -> list[str]:
    """Leave out statements that the others imply: a ones digit is in a number."""
    kept = list(chosen)
    for phrase in chosen:
        others = [said[other] for other in kept if other != phrase]
        if others and bool(said[phrase][np.logical_and.reduce(others)].all()):
            kept.remove(phrase)
    return kept
