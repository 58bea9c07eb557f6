"""The structure of an expression, position by position.

- `labels` gives every source position of a numeral its side of the fraction, its argument, its
  operator, its depth and the place of its digit.
- `PLACES` are functions that find, for example, the positions of all denominators.
- `RELATIONS` are functions that find pairs of a position and the positions related to it, such as
  an argument and its operator. `SKIPPED` has the positions that some relations skip.

All positions are source positions: 0 is the start token.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from tp_transformer.scoring.expressions import (
    DIVISION,
    MULTIPLICATION,
    Expression,
    Negation,
    Node,
    Number,
    Operation,
    nodes,
)

NUMERATOR, DENOMINATOR = "numerator", "denominator"
FIRST, SECOND = "first", "second"
ONES, SIGN, POINT = "ones", "sign", "point"

SIDE, ARGUMENT, OPERATOR, DEPTH, DIGIT_PLACE = LABELS = (
    "side",
    "argument",
    "operator",
    "depth",
    "digit place",
)

_PLACES = {0: ONES, 1: "tens", 2: "hundreds", 3: "thousands", -1: "tenths", -2: "hundredths"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a number or an operation in its expression.

    Attributes:
        side: numerator or denominator of the nearest chain of products and quotients around it, or
            None. The divisor of a divisor is a numerator again. A sum interrupts a chain: fractions
            among its terms start a new one, and its other terms have the side of the sum
        unreversed_side: the side in the innermost fraction, without the reversal
        argument: first or second argument of the parent operation
        above: the parent operation, ignoring negations
        depth: number of operations above
        division: the nearest operation above that has it in its divisor
        chain: the topmost operation of the chain that determines `side`
    """

    side: str | None = None
    unreversed_side: str | None = None
    argument: str | None = None
    above: Operation | None = None
    depth: int = 0
    division: Operation | None = None
    chain: Operation | None = None


def places(tree: Node) -> Iterator[tuple[Number | Operation, Place]]:
    """Iterate over numbers and operations with their places, from left to right."""
    waiting: list[tuple[Node, Place]] = [(tree, Place())]
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, Negation):
            waiting.append((node.operand, place))
            continue
        if isinstance(node, Number | Operation):
            yield node, place
        if isinstance(node, Operation):
            left, right = _below(node, place)
            waiting += [(node.right, right), (node.left, left)]


def _below(node: Operation, place: Place) -> tuple[Place, Place]:
    first = replace(place, argument=FIRST, above=node, depth=place.depth + 1)
    if node.operator in {MULTIPLICATION, DIVISION}:
        continues = place.above and place.above.operator in {MULTIPLICATION, DIVISION}
        if not continues:
            first = replace(first, side=NUMERATOR, unreversed_side=NUMERATOR, chain=node)
    if node.operator == DIVISION:
        first = replace(first, unreversed_side=NUMERATOR)
    second = replace(first, argument=SECOND)
    if node.operator == DIVISION:
        opposite = DENOMINATOR if first.side == NUMERATOR else NUMERATOR
        second = replace(second, side=opposite, unreversed_side=DENOMINATOR, division=node)
    return first, second


def labels(expression: Expression) -> dict[str, list[str | None]]:
    """Return each label at every source position, the start and end tokens included.

    Labels are None outside of numbers.
    """
    n_positions = len(expression.question) + 2
    values: dict[str, list[str | None]] = {name: [None] * n_positions for name in LABELS}
    for node, place in places(expression.tree):
        if isinstance(node, Number):
            start, end = node.span
            for at in range(start, end):
                values[SIDE][at] = place.side
                values[ARGUMENT][at] = place.argument
                values[OPERATOR][at] = None if place.above is None else place.above.operator
                values[DEPTH][at] = str(place.depth)
            values[DIGIT_PLACE][start:end] = digit_places(expression.question[start - 1 : end - 1])
    return values


def has_reversed_side(expression: Expression) -> bool:
    """Whether there is a fraction in a denominator, whose divisor is a numerator again."""
    return any(
        place.side == NUMERATOR and place.division is not None
        for _, place in places(expression.tree)
    )


def unreversed_sides(expression: Expression) -> list[str | None]:
    """Return the side without the reversal of section 5.1 at every source position."""
    sides: list[str | None] = [None] * (len(expression.question) + 2)
    for node, place in places(expression.tree):
        if isinstance(node, Number):
            start, end = node.span
            sides[start:end] = [place.unreversed_side] * (end - start)
    return sides


def digit_places(numeral: str) -> list[str | None]:
    """Return the place of each character of a numeral: ones, tens, …, tenths, sign, point."""
    whole = numeral.partition(".")[0]
    # The digit before the point has place 0, the digit after it -1.
    names: list[str | None] = []
    for at, character in enumerate(numeral):
        power = len(whole) - 1 - at
        place = power if power >= 0 else power + 1
        names.append({"-": SIGN, ".": POINT}.get(character) or _PLACES.get(place, f"10^{place}"))
    return names


T = TypeVar("T")
PositionFinder = Callable[[Expression], list[int]]


def labelled(
    labels_of: Callable[[T], Mapping[str, Sequence[str | None]]], label: str, *values: str
) -> Callable[[T], list[int]]:
    """Find the positions with one of these values of a label, or with any value."""

    def positions(question: T) -> list[int]:
        return [
            at
            for at, value in enumerate(labels_of(question).get(label, ()))
            if value in values or (not values and value is not None)
        ]

    return positions


def _operators(expression: Expression) -> list[int]:
    return sorted(
        at for node in nodes(expression.tree) if isinstance(node, Operation) for at in node.at
    )


PLACES: dict[str, PositionFinder] = {
    "numbers": labelled(labels, DEPTH),
    "numerators": labelled(labels, SIDE, NUMERATOR),
    "denominators": labelled(labels, SIDE, DENOMINATOR),
    "first arguments": labelled(labels, ARGUMENT, FIRST),
    "second arguments": labelled(labels, ARGUMENT, SECOND),
    "operators": _operators,
}

Pairs = list[tuple[int, frozenset[int]]]  # a position, and the positions related to it
Relation = Callable[[Expression], Pairs]


def _characters(node: Node) -> frozenset[int]:
    return frozenset(range(*node.span))


def _numbers(expression: Expression) -> Iterator[tuple[Number, Place]]:
    for node, place in places(expression.tree):
        if isinstance(node, Number):
            yield node, place


def _to_operator(argument: str) -> Relation:
    """Relate the characters of a number that is such an argument to its operator."""

    def relation(expression: Expression) -> Pairs:
        return [
            (at, frozenset(place.above.at))
            for number, place in _numbers(expression)
            if place.above is not None and place.argument == argument
            for at in range(*number.span)
        ]

    return relation


def _to_division(expression: Expression) -> Pairs:
    return [
        (at, frozenset(place.division.at))
        for number, place in _numbers(expression)
        if place.division is not None and place.side == DENOMINATOR
        for at in range(*number.span)
    ]


def _interrupted(
    expression: Expression,
) -> Iterator[tuple[list[Number], list[tuple[Number, frozenset[int]]]]]:
    """Find numerators between two denominators of a chain, and the two with their divisions.

    The third example of section 5.2: c in a/b*c/d, and in a/(b/c*d).
    """
    chains: dict[int, list[tuple[Number, Place]]] = {}
    for number, place in _numbers(expression):
        if place.chain is not None:
            chains.setdefault(id(place.chain), []).append((number, place))
    for chain in chains.values():
        denominators = [
            (rank, (number, frozenset(place.division.at)))
            for rank, (number, place) in enumerate(chain)
            if place.side == DENOMINATOR and place.division is not None
        ]
        for (rank, before), (next_rank, after) in pairwise(denominators):
            if between := [number for number, _ in chain[rank + 1 : next_rank]]:
                yield between, [before, after]


def _past_numerator(expression: Expression) -> Pairs:
    """Relate the denominators around a numerator to their divisions, each pair once."""
    return list(
        dict.fromkeys(
            (at, division)
            for _, around in _interrupted(expression)
            for denominator, division in around
            for at in range(*denominator.span)
        )
    )


def _from_numerator(expression: Expression) -> Pairs:
    """Relate the numerators in between to the same divisions."""
    return [
        (at, division)
        for between, around in _interrupted(expression)
        for _, division in around
        for numerator in between
        for at in range(*numerator.span)
    ]


def _to_argument(argument: str) -> Relation:
    """Relate an operator to all positions of one of its arguments."""

    def relation(expression: Expression) -> Pairs:
        return [
            (at, _characters(node.left if argument == FIRST else node.right))
            for node in nodes(expression.tree)
            if isinstance(node, Operation)
            for at in node.at
        ]

    return relation


def _to_operator_above(expression: Expression) -> Pairs:
    return [
        (at, frozenset(place.above.at))
        for node, place in places(expression.tree)
        if isinstance(node, Operation) and place.above is not None
        for at in node.at
    ]


def _to_other_argument(expression: Expression) -> Pairs:
    """Relate a number to the other argument of its operator, if that is a number as well."""
    pairs: Pairs = []
    for node in nodes(expression.tree):
        if isinstance(node, Operation):
            left, right = node.left, node.right
            if isinstance(left, Number) and isinstance(right, Number):
                pairs += [(at, _characters(right)) for at in range(*left.span)]
                pairs += [(at, _characters(left)) for at in range(*right.span)]
    return pairs


def _digits(expression: Expression) -> Iterator[list[int]]:
    """Iterate over the positions of the digits of each number, without sign and point."""
    for number, _ in _numbers(expression):
        yield [at for at in range(*number.span) if expression.question[at - 1].isdigit()]


def _to_next_digit(expression: Expression) -> Pairs:
    return [
        (digit, frozenset({following}))
        for digits in _digits(expression)
        for digit, following in pairwise(digits)
    ]


def _inverse(relation: Relation) -> Relation:
    """Relate each key to its query."""
    return lambda expression: [
        (key, frozenset({query})) for query, keys in relation(expression) for key in keys
    ]


def _to_ones_digit(expression: Expression) -> Pairs:
    places_of = labels(expression)[DIGIT_PLACE]
    pairs: Pairs = []
    for digits in _digits(expression):
        ones = next(at for at in digits if places_of[at] == ONES)
        pairs += [(at, frozenset({ones})) for at in digits if at != ones]
    return pairs


def _to_closing(expression: Expression) -> Pairs:
    return [
        (start, frozenset({end - 1}))
        for node in nodes(expression.tree)
        for start, end in node.parentheses
    ]


RELATIONS: dict[str, Relation] = {
    "first argument to its operator": _to_operator(FIRST),
    "second argument to its operator": _to_operator(SECOND),
    "denominator to its division": _to_division,
    "denominator to its division, past a numerator": _past_numerator,
    "operator to its first argument": _to_argument(FIRST),
    "operator to its second argument": _to_argument(SECOND),
    "operator to the operator above": _to_operator_above,
    "number to the other argument": _to_other_argument,
    "digit to the next digit": _to_next_digit,
    "digit to the digit before": _inverse(_to_next_digit),
    "digit to its number's ones digit": _to_ones_digit,
    "opening to closing parenthesis": _to_closing,
    "closing to opening parenthesis": _inverse(_to_closing),
}

# For a relation that skips positions in between: those positions, related to the same keys.
SKIPPED: dict[str, Relation] = {"denominator to its division, past a numerator": _from_numerator}
