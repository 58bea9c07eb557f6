"""Relations of expressions, lists, digits and polynomials, by hand."""

import pytest

from tp_transformer.interpret.core.relations import (
    OF_EXPRESSIONS,
    PAST_NUMERATOR,
    RELATIONS,
    SKIPPED,
    TO_DIGIT,
    TO_NAME,
)
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.scoring.expressions import parse

DIGIT = "What is the tens digit of 531?"
SORT = "Sort 4, -7, 12."
POLYNOMIAL = "Differentiate -31*x**2 + 5*x**10 - 4*x wrt x."


@pytest.mark.parametrize(
    ("relation", "question", "expected"),
    [
        ("second argument to its operator", "1/23", "2→/ 3→/"),
        ("first argument to its operator", "1/23", "1→/"),
        ("second argument to its operator", "(1*2)/(3-4)", "2→* 4→-"),
        ("second argument to its operator", "1/-(2)", "2→/"),
        ("second argument to its operator", "Divide 6 by 7.", "7→Divideby"),
        ("denominator to its division", "1/(2*3)", "2→/ 3→/"),
        ("denominator to its division", "1/(2/3)", "2→/"),
        (PAST_NUMERATOR, "1/2*34*5/6/7", "2→/ 6→/"),
        (PAST_NUMERATOR, "1/2/3", ""),  # nothing stands between
        (PAST_NUMERATOR, "1/2 + 3/4", ""),  # these are fractions of their own
        ("operator to its first argument", "12*3", "*→12"),
        ("operator to its second argument", "1-(2*3)", "-→2*3 *→3"),
        ("operator to the operator above", "1-(2*3)", "*→-"),
        ("number to the other argument", "12*3", "1→3 2→3 3→12"),
        ("number to the other argument", "12*(3-4)", "3→4 4→3"),
        ("digit to the next digit", "-12.3+4", "1→2 2→3"),
        ("digit to the digit before", "-12.3+4", "2→1 3→2"),
        ("digit to its number's ones digit", "-12.3+4", "1→2 3→2"),
        ("opening to closing parenthesis", "(1-(2))", "(→) (→)"),
        ("closing to opening parenthesis", "(1-2)*3", ")→("),
        ("closing to opening parenthesis", "1", ""),
    ],
)
def test_relations_of_expressions(relation, question, expected):
    text = token_characters(question)
    pairs = RELATIONS[relation](parse(question))
    found = [f"{text[query]}→{''.join(text[key] for key in sorted(keys))}" for query, keys in pairs]
    assert found == expected.split()


@pytest.mark.parametrize(
    ("question", "expected", "skipped"),
    [
        ("1/2*3/4", [(3, 2), (7, 6)], [(5, 2), (5, 6)]),
        ("1/(2/3*4)", [(4, 2), (8, 2)], [(6, 2), (6, 2)]),
        ("1/2*34*5/6", [(3, 2), (10, 9)], [(5, 2), (6, 2), (8, 2), (5, 9), (6, 9), (8, 9)]),
        ("1/(2 - 3*4/5/6)", [], []),
    ],
)
def test_numerators_between_denominators_are_skipped(question, expected, skipped):
    """The third example of section 5.2."""
    for relation, pairs in (
        (RELATIONS[PAST_NUMERATOR], expected),
        (SKIPPED[PAST_NUMERATOR], skipped),
    ):
        found = relation(parse(question))
        assert [(query, *keys) for query, keys in found] == pairs


def texts(question, pairs):
    """The characters of pairs of a query and its keys, the queries of equal keys together."""
    found = {}
    for query, keys in pairs:
        of_keys = "".join(question[at - 1] for at in sorted(keys))
        found[of_keys] = found.get(of_keys, "") + question[query - 1]
    return {queries: keys for keys, queries in found.items()}


@pytest.mark.parametrize(
    ("relation", "question", "expected"),
    [
        (TO_DIGIT, DIGIT, {"tens": "3"}),
        (TO_NAME, DIGIT, {"3": "tens"}),
        ("coefficient to its exponent", POLYNOMIAL, {"31": "2", "5": "10"}),
        ("exponent to its coefficient", POLYNOMIAL, {"2": "31", "10": "5"}),
        ("number to the next larger one", SORT, {"4": "12", "-7": "4"}),
        ("number to the next smaller one", SORT, {"4": "-7", "12": "4"}),
        ("number to the next larger one", "Sort 1/2, 3, 0.5.", {"1/20.5": "3"}),
    ],
)
def test_relations_of_texts(relation, question, expected):
    assert texts(question, RELATIONS[relation](question)) == expected


def test_the_other_digits_are_the_skipped_ones():
    digits = {DIGIT[at - 1] for _, keys in SKIPPED[TO_DIGIT](DIGIT) for at in keys}
    assert digits == {"5", "1"}
    assert texts(DIGIT, SKIPPED[TO_NAME](DIGIT)) == {"51": "tens"}


@pytest.mark.parametrize(
    "question",
    [
        "What is the millions digit of 531?",  # a zero that is not written
        "What is the units digit of 5?",  # no other digit
        "Sort 4, 4.",
        "Sort 1/0, 3.",
        "Find the first derivative of 3*x + 4.",
        "Is 7 prime?",
        "",
    ],
)
def test_what_has_no_relation(question):
    assert all(relation(question) == [] for relation in RELATIONS.values())


def test_relations_of_texts_are_not_those_of_expressions():
    expression = parse("What is (12/3) - 45?")
    for name, find in RELATIONS.items():
        assert name in OF_EXPRESSIONS or find(expression) == []


def test_relations_of_deep_expressions():
    deep = parse("1/" * 140 + "1")
    assert len(RELATIONS["second argument to its operator"](deep)) == 140
    for relation in RELATIONS.values():
        relation(deep)
