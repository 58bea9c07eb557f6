"""Labels and places of expressions, lists, digits and polynomials, by hand."""

import pytest

from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.interpret.core.structure import (
    ASKED,
    DEGREE,
    ITEM,
    LABELS,
    PART,
    PLACES,
    RANK,
    labels,
    numerals,
    places,
    unreversed_sides,
)
from tp_transformer.scoring.expressions import parse

DIGIT = "What is the tens digit of 531?"
SORT = "Sort 4, -7, 12."
POLYNOMIAL = "Differentiate -31*x**2 + 5*x**10 - 4*x wrt x."


def initials(values):
    """A character for each position: the first letter of its label, or a dot."""
    return "".join("." if value is None else value[0] for value in values)


def shown(question, label):
    values = labels(parse(question))[label]
    assert len(values) == len(token_characters(question))
    return initials(values)


def shown_text(question, label):
    """The same for the characters of a question that is not an expression."""
    values = labels(question).get(label, [None] * (len(question) + 2))
    assert len(values) == len(question) + 2
    assert values[0] is values[-1] is None
    return initials(values[1:-1])


@pytest.mark.parametrize(
    ("question", "expected", "unreversed"),
    [
        ("3/45", ".n.dd.", ".n.dd."),
        # The reversal in a denominator's denominator; without it, a fraction is as any other.
        ("(1/2)/(3/4)", "..n.d...d.n..", "..n.d...n.d.."),
        ("1/(2/(3/4))", ".n..d..n.d...", ".n..n..n.d..."),
        ("1/(2*3)", ".n..d.d..", ".n..d.d.."),
        ("8/2/4*5", ".n.d.d.n.", ".n.d.d.n."),
        ("3 + 4", ".......", "......."),  # no fraction, no product
        ("3*4", ".n.n.", ".n.n."),
        ("(1 + 2)/3", "..n...n..d.", "..n...n..d."),  # the terms of a sum are where it is
        # A fraction among them counts from itself.
        ("1/(2/3 + 4)", ".n..n.d...d..", ".n..n.d...d.."),
        ("1/(2/3*4)", ".n..d.n.d..", ".n..n.d.d.."),
        ("1/-(2/3)", ".n...d.n..", ".n...n.d.."),
        ("What is -7?", ".............", "............."),
        ("Divide -7 by 2.", "........nn....d..", "........nn....d.."),
    ],
)
def test_sides(question, expected, unreversed):
    assert shown(question, "side") == expected
    assert initials(unreversed_sides(parse(question))) == unreversed


def test_arguments_operators_depths():
    question = "12 - (3*4)/5"
    assert shown(question, "argument") == ".ff....f.s..s."
    assert shown(question, "operator") == ".--....*.*../."
    assert shown(question, "depth") == ".11....3.3..2."
    assert shown("7", "argument") == "..."
    assert shown("7", "depth") == ".0."
    assert shown("Subtract 3 from 4.", "argument") == "..........s......f.."


def test_digit_places():
    found = labels(parse("-12345.678"))["digit place"]
    assert found[1:-1] == [
        *("sign", "10^4", "thousands", "hundreds", "tens", "ones"),
        *("point", "tenths", "hundredths", "10^-3"),
    ]
    assert found[0] is found[-1] is None


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("numbers", ".12....3.4..5."),
        ("numerators", ".......3.4...."),
        ("denominators", "............5."),
        ("first arguments", ".12....3......"),
        ("second arguments", ".........4..5."),
        ("operators", "....-...*../.."),
    ],
)
def test_places_of_expressions(place, expected):
    question = "12 - (3*4)/5"
    text = token_characters(question)
    positions = PLACES[place](parse(question))
    assert "".join(text[at] if at in positions else "." for at in range(len(text))) == expected
    assert positions == sorted(set(positions))


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
def test_places_of_texts(place, question, expected):
    assert "".join(question[at - 1] for at in PLACES[place](question)) == expected


def test_only_numbers_have_labels():
    question = "What is (31 - -2)*7?"
    for name in LABELS:
        for character, label in zip(
            token_characters(question), labels(parse(question))[name], strict=True
        ):
            assert label is None or character in "-0123456789"
    depths = labels(parse(question))["depth"]
    assert sum(depth is not None for depth in depths) == len("31") + len("-2") + len("7")


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
    assert (shown_text(question, ITEM), shown_text(question, RANK)) == (item, rank)


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
    assert shown_text(question, ASKED) == expected


def test_polynomials():
    question = "Find the second derivative of 3*x**4 - 12*x + 7."
    lead = "." * len("Find the second derivative of ")
    assert shown_text(question, PART) == lead + "c.v..e...cc.v...c."
    assert shown_text(question, DEGREE) == lead + "444444...1111...0."
    question = "Differentiate -x**2 + x wrt x."
    lead = "." * len("Differentiate -")
    assert shown_text(question, PART) == lead + "v..e...v......."
    assert shown_text(question, DEGREE) == lead + "2222...1......."


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
    assert PART not in labels(question)


def test_numerals():
    found = list(numerals("Is -3.5 - 12*x**2 > 4-7?"))
    assert found == [(4, "-3.5"), (11, "12"), (17, "2"), (21, "4"), (23, "7")]
    assert list(numerals("no number")) == []


def test_deep_trees_are_walked():
    assert max(place.depth for _, place in places(parse("1/" * 140 + "1").tree)) == 140
