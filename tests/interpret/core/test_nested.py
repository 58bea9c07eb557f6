"""Nested fractions are where they say they are, and are worth what they say."""

import pytest

from tp_transformer.errors import UserError
from tp_transformer.interpret.core.sample import (
    DIGITS,
    LETTERS,
    Sample,
    drawn_sample,
    nested_fractions,
    nested_sample,
    read_fractions,
    token_characters,
)
from tp_transformer.scoring.expressions import parse


def test_numbers_and_the_operator_are_at_their_positions():
    for one in nested_fractions(200, seed=3):
        read = [token_characters(one.question)[one.position(letter)] for letter in LETTERS]
        assert tuple(map(int, read)) == one.numbers
        assert token_characters(one.question)[one.operator - 1 : one.operator + 2] == ")/("


def test_answers_and_exchanges_are_what_the_parser_makes_of_the_text():
    for one in nested_fractions(50):
        for letters in ("ab", "ac", "ad", "bc", "bd", "cd"):
            other = one.exchanged(letters)
            assert str(parse(other.question).tree.value) == other.answer
            assert (other.answer == one.answer) == (letters in {"ad", "bc"})
            assert other.exchanged(letters) == one


def test_all_of_them_and_no_more():
    every = nested_fractions(1680)
    assert len({one.numbers for one in every}) == len(every)
    assert {number for one in every for number in one.numbers} == set(DIGITS)
    with pytest.raises(UserError, match="1 to 1680"):
        nested_fractions(1681)


def test_given_questions_are_read_as_nested_fractions():
    asked = nested_fractions(40, seed=2)
    assert read_fractions(nested_sample(asked, "")) == asked
    given = Sample(questions=("Let (x) be (2/3)/(4/5), please",), answers=("?",), origin="given")
    (found,) = read_fractions(given)
    assert (found.question, found.numbers) == (given.questions[0], (2, 3, 4, 5))
    assert token_characters(found.question)[found.position("c")] == "4"
    assert token_characters(found.question)[found.operator] == "/"


@pytest.mark.parametrize("question", ["1 + 1", "(2/3)/(4/3)", "(2/3)/(4/51)", "{(2/3)/(4/5)}"])
def test_other_questions_are_refused(question):
    with pytest.raises(UserError, match="is not a nested fraction"):
        read_fractions(Sample(questions=(question,), answers=("1",), origin=""))


def test_a_sample_has_as_many_as_there_are():
    assert drawn_sample(5000, 0).origin == "1680 nested fractions of digits (seed 0)"
    assert drawn_sample(1, 3).origin == "1 nested fraction of digits (seed 3)"
