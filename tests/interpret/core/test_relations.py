"""Labels, relations and places of lists, digits and polynomials, by hand and generated."""

import pytest

from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.relations import (
    ASKED,
    DEGREE,
    ITEM,
    PART,
    PLACES,
    RANK,
    RELATIONS,
    SKIPPED,
    TO_DIGIT,
    TO_NAME,
    numerals,
    wording_labels,
)
from tp_transformer.scoring.expressions import parse

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


def shown(question, label):
    """A character for each character of a question: the first letter of its label, or a dot."""
    found = wording_labels(question).get(label, [None] * (len(question) + 2))
    assert len(found) == len(question) + 2
    assert found[0] is None
    assert found[-1] is None
    return "".join("." if one is None else one[0] for one in found[1:-1])


@pytest.mark.parametrize(
    ("question", "item", "rank"),
    [
        ("Sort 3, -12, 7.", ".....1..222..3.", ".....b..sss..l."),
        (
            "Put 0.5, 1/2, -1/3 in order.",
            "....111..222..3333..........",
            "....lll..lll..ssss..........",
        ),
        ("  (a) 3  (b) -1/2  (c) 7", "......1......2222......3", "......b......ssss......l"),
        ("Sort 4, 4.", ".....1..2.", ".........."),
        (
            "What is the closest to 2 in 5, 1, 9?",
            "............................1..2..3.",
            "............................b..s..l.",
        ),
        ("Sort 4.", ".......", "......."),
        ("Sort 1/0, 3.", "." * 12, "." * 12),
        ("  (a) 3  (b) -1/00", "." * 18, "." * 18),
        ("Sort 1/10, 3.", ".....1111..2.", ".....ssss..l."),
        ("Sort a, b, c.", ".............", "............."),
        ("Let w = -3. Sort 4, w, 5.", "." * 25, "." * 25),
        ("Let w = -3. Sort w, 4, 5.", "." * 25, "." * 25),
        ("Let w = -3. Sort 4, 5, w.", "." * 25, "." * 25),
        ("Solve 0 = 3*x - 6 for x.", "." * 24, "." * 24),
    ],
)
def test_lists(question, item, rank):
    assert (shown(question, ITEM), shown(question, RANK)) == (item, rank)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the tens digit of 5316?", "." * 26 + "nnyn."),
        ("What is the thousands digit of 5316?", "." * 31 + "ynnn."),
        ("What is the billions digit of 53?", "." * 30 + "nn."),  # a zero that is not written
        ("What is the tens digit of w?", "." * 28),
    ],
)
def test_digits(question, expected):
    assert shown(question, ASKED) == expected


def test_polynomials():
    question = "Find the second derivative of 3*x**4 - 12*x + 7."
    lead = "." * len("Find the second derivative of ")
    assert shown(question, PART) == lead + "c.v..e...cc.v...c."
    assert shown(question, DEGREE) == lead + "444444...1111...0."
    question = "Differentiate -x**2 + x wrt x."
    lead = "." * len("Differentiate -")
    assert shown(question, PART) == lead + "v..e...v......."
    assert shown(question, DEGREE) == lead + "2222...1......."


@pytest.mark.parametrize(
    "question",
    [
        "Find the first derivative of 3*x*y**2 - 12*y.",  # two variables in a term
        "Find the first derivative of 3*x**2 - 12*y.",  # two variables
        "Is 3 a factor of 12?",
        "What is (3*x - 2)*(x + 1)?",
        "",
    ],
)
def test_what_is_not_a_polynomial_has_no_labels(question):
    assert PART not in wording_labels(question)


def test_numerals():
    found = list(numerals("Is -3.5 - 12*x**2 > 4-7?"))
    assert found == [(4, "-3.5"), (11, "12"), (17, "2"), (21, "4"), (23, "7")]
    assert list(numerals("no number")) == []
