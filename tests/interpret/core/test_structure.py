"""Labels and relations of expressions, by hand."""

import pytest

from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.interpret.core.structure import (
    LABELS,
    PLACES,
    RELATIONS,
    SKIPPED,
    labels,
    places,
    unreversed_sides,
)
from tp_transformer.scoring.expressions import parse

PAST = "denominator to its division, past a numerator"


def shown(question, label):
    """A character for each position of a question: the first letter of its label, or a dot."""
    found = labels(parse(question))[label]
    assert len(found) == len(token_characters(question))
    return "".join("." if one is None else one[0] for one in found)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("3/45", ".n.dd."),
        ("(1/2)/(3/4)", "..n.d...d.n.."),  # the swap under a denominator's denominator
        ("1/(2/(3/4))", ".n..d..n.d..."),
        ("8/2/4*5", ".n.d.d.n."),
        ("3 + 4", "......."),  # no fraction, no product
        ("3*4", ".n.n."),
        ("(1 + 2)/3", "..n...n..d."),  # the terms of a sum are where it is
        ("1/(2/3 + 4)", ".n..n.d...d.."),  # a fraction among them counts from itself
        ("1/-(2/3)", ".n...d.n.."),
        ("What is -7?", "............."),
        ("Divide -7 by 2.", "........nn....d.."),
    ],
)
def test_sides(question, expected):
    assert shown(question, "side") == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("3/45", ".n.dd."),
        ("(1/2)/(3/4)", "..n.d...n.d.."),  # the second fraction as the first
        ("1/(2/(3/4))", ".n..n..n.d..."),
        ("1/(2*3)", ".n..d.d.."),
        ("8/2/4*5", ".n.d.d.n."),
        ("3 + 4", "......."),
        ("(1 + 2)/3", "..n...n..d."),
        ("1/(2/3 + 4)", ".n..n.d...d.."),
        ("1/(2/3*4)", ".n..n.d.d.."),
        ("What is -7?", "............."),
    ],
)
def test_unreversed_sides(question, expected):
    found = unreversed_sides(parse(question))
    assert "".join("." if one is None else one[0] for one in found) == expected


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
def test_places(place, expected):
    question = "12 - (3*4)/5"
    text = token_characters(question)
    found = PLACES[place](parse(question))
    assert "".join(text[at] if at in found else "." for at in range(len(text))) == expected
    assert found == sorted(set(found))


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
    ("relation", "question", "expected"),
    [
        ("second argument to its operator", "1/23", "2→/ 3→/"),
        ("first argument to its operator", "1/23", "1→/"),
        ("second argument to its operator", "(1*2)/(3-4)", "2→* 4→-"),
        ("second argument to its operator", "1/-(2)", "2→/"),
        ("second argument to its operator", "Divide 6 by 7.", "7→Divideby"),
        ("denominator to its division", "1/(2*3)", "2→/ 3→/"),
        ("denominator to its division", "1/(2/3)", "2→/"),
        (PAST, "1/2*3/4", "2→/ 4→/"),
        (PAST, "1/(2/3*4)", "2→/ 4→/"),
        (PAST, "1/2*34*5/6/7", "2→/ 6→/"),
        (PAST, "1/2/3", ""),  # nothing stands between
        (PAST, "1/2 + 3/4", ""),  # these are fractions of their own
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
def test_relations(relation, question, expected):
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
    for relation, pairs in ((RELATIONS[PAST], expected), (SKIPPED[PAST], skipped)):
        found = relation(parse(question))
        assert [(query, *keys) for query, keys in found] == pairs


def test_matching_parentheses_match():
    pairs = RELATIONS["opening to closing parenthesis"](parse("(1-(2))"))
    assert sorted((opening, *closing) for opening, closing in pairs) == [(1, 7), (4, 6)]


def test_deep_trees_are_walked():
    deep = parse("1/" * 450 + "1")
    assert max(place.depth for _, place in places(deep.tree)) == 450
    for relation in RELATIONS.values():
        relation(deep)
