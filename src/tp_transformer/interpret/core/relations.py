"""Relations and places in questions of all kinds: expressions, lists, digits and polynomials.

Those of expressions are defined in `structure`. The others are found in the text of a question that
is not an expression (`wording`). All functions take what `Sample.parsed` has for a question: its
expression, or its text if it has none.

All positions are source positions: 0 is the start token.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tp_transformer.expressions import Expression
from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.structure import Pairs
from tp_transformer.interpret.core.wording import (
    ASKED,
    COEFFICIENT,
    EXPONENT,
    ITEM,
    PART,
    YES,
    asked_digit,
    items,
    numerals,
    terms,
    wording_labels,
)

T = TypeVar("T")
Parsed = Expression | str
Relation = Callable[[Parsed], Pairs]
PositionFinder = Callable[[Parsed], list[int]]


def _positions(span: tuple[int, int]) -> range:
    """Return the source positions of some characters of a question."""
    return range(span[0] + 1, span[1] + 1)


def _to_asked_digit(question: str) -> Pairs:
    """Relate the name of a digit to the digit, if that is written and there are others."""
    found = asked_digit(question)
    if found is None or found[1] < found[2][0] or len(_positions(found[2])) == 1:
        return []
    name, asked, _ = found
    return [(at, frozenset({asked + 1})) for at in _positions(name)]


def _to_other_digits(question: str) -> Pairs:
    """Relate the name of a digit to each of the digits that it does not name."""
    found = asked_digit(question)
    if found is None:
        return []
    name, asked, number = found
    others = [digit for digit in _positions(number) if digit != asked + 1]
    return [(at, frozenset({digit})) for digit in others for at in _positions(name)]


def _to_name(to_digits: Callable[[str], Pairs]) -> Callable[[str], Pairs]:
    """Relate digits to all characters of the name, given the pairs of the other direction."""

    def relation(question: str) -> Pairs:
        pairs = to_digits(question)
        name = frozenset(at for at, _ in pairs)
        return [(digit, name) for digit in sorted({at for _, digits in pairs for at in digits})]

    return relation


def _in_term(from_group: int, to_group: int) -> Callable[[str], Pairs]:
    """Relate one part of each term of a polynomial to another part, both groups of `terms`."""

    def relation(question: str) -> Pairs:
        found: Pairs = []
        for parts, start in terms(question):
            if parts[from_group] and parts[to_group]:
                spans = [
                    (start + parts.start(group), start + parts.end(group))
                    for group in (from_group, to_group)
                ]
                keys = frozenset(_positions(spans[1]))
                found += [(at, keys) for at in _positions(spans[0])]
        return found

    return relation


def _to_neighbour(step: int) -> Callable[[str], Pairs]:
    """Relate each number of a list to the next larger one (1) or the next smaller one (-1)."""

    def relation(question: str) -> Pairs:
        spans, values = items(question)
        found: Pairs = []
        for span, value in zip(spans, values, strict=True):
            beyond = [step * other for other in values if step * other > step * value]
            keys = {
                at
                for other, number in zip(spans, values, strict=True)
                if beyond and step * number == min(beyond)
                for at in _positions(other)
            }
            if keys:
                found += [(at, frozenset(keys)) for at in _positions(span)]
        return found

    return relation


def _labelled(label: str, *values: str) -> Callable[[str], list[int]]:
    """Find the positions with one of these values of a label, or with any value."""

    def positions(question: str) -> list[int]:
        return [
            at
            for at, value in enumerate(wording_labels(question).get(label, []))
            if value in values or (not values and value is not None)
        ]

    return positions


def _numbers(question: str) -> list[int]:
    return [
        at for start, numeral in numerals(question) for at in range(start, start + len(numeral))
    ]


def _joined(
    of_expression: Mapping[str, Callable[[Expression], list[T]]],
    of_text: Mapping[str, Callable[[str], list[T]]],
) -> dict[str, Callable[[Parsed], list[T]]]:
    """Return one function for each name, which finds nothing in a question of the other kind."""

    def join(name: str) -> Callable[[Parsed], list[T]]:
        in_expression, in_text = of_expression.get(name), of_text.get(name)

        def find(parsed: Parsed) -> list[T]:
            if isinstance(parsed, str):
                return in_text(parsed) if in_text else []
            return in_expression(parsed) if in_expression else []

        return find

    return {name: join(name) for name in dict.fromkeys([*of_expression, *of_text])}


TO_DIGIT, TO_NAME = "name of a digit to that digit", "digit asked for to its name"

RELATIONS: dict[str, Relation] = _joined(
    structure.RELATIONS,
    {
        TO_DIGIT: _to_asked_digit,
        TO_NAME: _to_name(_to_asked_digit),
        "coefficient to its exponent": _in_term(1, 3),
        "exponent to its coefficient": _in_term(3, 1),
        "number to the next larger one": _to_neighbour(1),
        "number to the next smaller one": _to_neighbour(-1),
    },
)

# For a relation that skips positions in between, or that is about one digit of several: those other
# positions, related to the same keys, or the same positions, related to the other digits.
SKIPPED: dict[str, Relation] = _joined(
    structure.SKIPPED, {TO_DIGIT: _to_other_digits, TO_NAME: _to_name(_to_other_digits)}
)

PLACES: dict[str, PositionFinder] = _joined(
    structure.PLACES,
    {
        "numbers": _numbers,
        "digit asked for": _labelled(ASKED, YES),
        "coefficients": _labelled(PART, COEFFICIENT),
        "exponents": _labelled(PART, EXPONENT),
        "items of a list": _labelled(ITEM),
    },
)
