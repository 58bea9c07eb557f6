"""Labels of lists, digits and polynomials, by hand and in generated questions."""

import pytest

from tp_transformer.interpret.core.wording import (
    ASKED,
    DEGREE,
    ITEM,
    PART,
    RANK,
    numerals,
    wording_labels,
)


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
