"""Relations and places of lists, digits and polynomials, by hand."""

import pytest

from tp_transformer.expressions import parse
from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.relations import PLACES, RELATIONS, SKIPPED, TO_DIGIT, TO_NAME

DIGIT = "What is the tens digit of 531?"
SORT = "Sort 4, -7, 12."
POLYNOMIAL = "Differentiate -31*x**2 + 5*x**10 - 4*x wrt x."


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
def test_relations(relation, question, expected):
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


def test_expressions_keep_their_relations_and_places():
    expression = parse("What is (12/3) - 45?")
    for own, joined in ((structure.RELATIONS, RELATIONS), (structure.PLACES, PLACES)):
        for name, find in joined.items():
            assert find(expression) == (own[name](expression) if name in own else [])


@pytest.mark.parametrize(
    ("place", "question", "expected"),
    [
        ("numbers", SORT, "4-712"),
        ("items of a list", SORT, "4-712"),
        ("items of a list", "Sort 1/0, 3.", ""),
        ("digit asked for", DIGIT, "3"),
        ("coefficients", POLYNOMIAL, "3154"),
        ("exponents", POLYNOMIAL, "210"),
        ("denominators", SORT, ""),
    ],
)
def test_places(place, question, expected):
    assert "".join(question[at - 1] for at in PLACES[place](question)) == expected
