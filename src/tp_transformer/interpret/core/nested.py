"""Nested fractions (a/b)/(c/d), and exchanges of two of their numbers (section 6.2)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from math import perm

import numpy as np

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.sample import Sample

LETTERS, NUMERATORS = "abcd", "ad"
FORM = "(a/b)/(c/d)"
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
        """The text of the question."""
        return self.wording.format("({}/{})/({}/{})".format(*self.numbers))

    @property
    def answer(self) -> str:
        """The correct answer, as the dataset writes it."""
        a, b, c, d = self.numbers
        return str(Fraction(a * d, b * c))

    def flipped(self, letter: str) -> str:
        """Return the answer that is right if one number were on the other side of the fraction."""
        squared = Fraction(self.numbers[LETTERS.index(letter)]) ** 2
        return str(Fraction(self.answer) * (1 / squared if letter in NUMERATORS else squared))

    @property
    def operator(self) -> int:
        """The source position of the outer operator; 0 is the start token."""
        return 1 + self.wording.index("{}") + FORM.index(")/(") + 1

    def position(self, letter: str) -> int:
        """Return the source position of a number."""
        return 1 + self.wording.index("{}") + FORM.index(letter)

    def exchanged(self, letters: str) -> "NestedFraction":
        """Return the same question with two numbers exchanged."""
        numbers = list(self.numbers)
        first, second = (LETTERS.index(letter) for letter in letters)
        numbers[first], numbers[second] = numbers[second], numbers[first]
        return NestedFraction(numbers=tuple(numbers), wording=self.wording)


_FRACTION = re.compile(r"\(([2-9])/([2-9])\)/\(([2-9])/([2-9])\)")


def nested_fractions(count: int, seed: int = 0) -> list[NestedFraction]:
    """Draw different questions of four different digits each.

    All numbers have one digit, so that an exchange moves no other token.
    """
    choices = list(permutations(DIGITS, len(LETTERS)))
    if not 1 <= count <= MOST_FRACTIONS:
        raise SettingsError(f"there are 1 to {MOST_FRACTIONS} nested fractions to ask, not {count}")
    rng = np.random.default_rng(seed)
    return [
        NestedFraction(numbers=choices[place], wording=WORDINGS[rng.integers(len(WORDINGS))])
        for place in rng.permutation(len(choices))[:count]
    ]


def nested_sample(fractions: Sequence[NestedFraction], origin: str) -> Sample:
    """Return nested fractions with their correct answers as a sample."""
    return Sample(
        questions=tuple(fraction.question for fraction in fractions),
        answers=tuple(fraction.answer for fraction in fractions),
        origin=origin,
    )


def drawn_sample(count: int, seed: int) -> Sample:
    """Draw a sample of nested fractions, of all there are if `count` is larger."""
    fractions = nested_fractions(min(count, MOST_FRACTIONS), seed)
    noun = "nested fraction" if len(fractions) == 1 else "nested fractions"
    return nested_sample(fractions, f"{len(fractions)} {noun} of digits (seed {seed})")


def read_fractions(sample: Sample) -> list[NestedFraction]:
    """Return the questions of a sample as nested fractions; any other question is an error."""
    return [_read(question) for question in sample.questions]


def _read(question: str) -> NestedFraction:
    match = _FRACTION.search(question)
    if match is None or len(set(match.groups())) < len(LETTERS) or set("{}") & set(question):
        raise SettingsError(
            f"{question!r} is not a nested fraction (a/b)/(c/d) of four different digits from 2 "
            "to 9, which this analysis needs"
        )
    wording = f"{question[: match.start()]}{{}}{question[match.end() :]}"
    return NestedFraction(numbers=tuple(map(int, match.groups())), wording=wording)
