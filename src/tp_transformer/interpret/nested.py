"""Nested fractions, (a/b)/(c/d), and the same with two of their numbers exchanged (section 6.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from math import perm

import numpy as np

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.record import Sample

LETTERS = "abcd"
DIGITS = range(2, 10)
MOST_FRACTIONS = perm(len(DIGITS), len(LETTERS))
WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")


@dataclass(frozen=True, kw_only=True)
class NestedFraction:
    """A question of the form (a/b)/(c/d), in a wording of the dataset."""

    numbers: tuple[int, ...]  # a, b, c, d
    wording: str

    @property
    def question(self) -> str:
        """The text."""
        return self.wording.format("({}/{})/({}/{})".format(*self.numbers))

    @property
    def answer(self) -> str:
        """The value as the dataset writes it."""
        a, b, c, d = self.numbers
        return str(Fraction(a * d, b * c))

    @property
    def operator(self) -> int:
        """The source position of the outer operator; 0 is the start symbol."""
        return 1 + self.question.index(")/(") + 1

    def position(self, letter: str) -> int:
        """The source position of a number."""
        return 1 + self.question.index("(") + "(a/b)/(c/d)".index(letter)

    def exchanged(self, letters: str) -> "NestedFraction":
        """The same with two numbers in each other's place."""
        numbers = list(self.numbers)
        one, other = (LETTERS.index(letter) for letter in letters)
        numbers[one], numbers[other] = numbers[other], numbers[one]
        return NestedFraction(numbers=tuple(numbers), wording=self.wording)


def nested_fractions(count: int, seed: int = 0) -> list[NestedFraction]:
    """Different questions of four different digits each.

    All numbers have one digit, so that an exchange moves no other symbol, and digits that differ
    give values that differ.
    """
    every = list(permutations(DIGITS, len(LETTERS)))
    if not 1 <= count <= MOST_FRACTIONS:
        raise SettingsError(f"there are 1 to {MOST_FRACTIONS} nested fractions to ask, not {count}")
    rng = np.random.default_rng(seed)
    return [
        NestedFraction(numbers=every[place], wording=WORDINGS[rng.integers(len(WORDINGS))])
        for place in rng.permutation(len(every))[:count]
    ]


def sample_of(asked: Sequence[NestedFraction], origin: str) -> Sample:
    """Such questions with their answers."""
    return Sample(
        questions=tuple(one.question for one in asked),
        answers=tuple(one.answer for one in asked),
        origin=origin,
    )
