"""Nested fractions are where they say they are, and are worth what they say."""

import pytest

from tp_transformer.errors import UserError
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.nested import DIGITS, LETTERS, nested_fractions
from tp_transformer.interpret.record import symbols


def test_numbers_and_the_operator_are_at_their_positions():
    for one in nested_fractions(200, seed=3):
        read = [symbols(one.question)[one.position(letter)] for letter in LETTERS]
        assert tuple(map(int, read)) == one.numbers
        assert symbols(one.question)[one.operator - 1 : one.operator + 2] == ")/("


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
