"""Relations between positions of a question, such as that of an argument to its operator.

`RELATIONS` are functions that find pairs of a position and the positions related to it, in what
`Sample.parsed` has for a question: in its expression, or in its text if it has none.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TypeVar

from tp_transformer.interpret.core.structure import (
    DENOMINATOR,
    DIGIT_PLACE,
    FIRST,
    ONES,
    SECOND,
    Parsed,
    Place,
    asked_digit,
    items,
    labels,
    numbers,
    places,
    terms,
)
from tp_transformer.scoring.expressions import Expression, Node, Number, Operation, Span, nodes

P = TypeVar("P", Expression, str)
Pairs = list[tuple[int, frozenset[int]]]  # a position, and the positions related to it
Relation = Callable[[Parsed], Pairs]


def _pairs(queries: Span, keys: Span | tuple[int, ...] | range) -> Pairs:
    """Relate each position of a span to all keys."""
    return [(at, frozenset(keys)) for at in range(*queries)]


def _to_operator(argument: str, expression: Expression) -> Pairs:
    """Relate the characters of a number that is such an argument to its operator."""
    return [
        pair
        for number, place in numbers(expression)
        if place.above is not None and place.argument == argument
        for pair in _pairs(number.span, place.above.at)
    ]


def _to_division(expression: Expression) -> Pairs:
    return [
        pair
        for number, place in numbers(expression)
        if place.division is not None and place.side == DENOMINATOR
        for pair in _pairs(number.span, place.division.at)
    ]


def _interrupted(
    expression: Expression,
) -> Iterator[tuple[list[Number], list[tuple[Number, tuple[int, ...]]]]]:
    """Find numerators between two denominators of a chain, and the two with their divisions.

    The third example of section 5.2: c in a/b*c/d, and in a/(b/c*d).
    """
    chains: dict[int, list[tuple[Number, Place]]] = {}
    for number, place in numbers(expression):
        if place.chain is not None:
            chains.setdefault(id(place.chain), []).append((number, place))
    for chain in chains.values():
        denominators = [
            (rank, (number, place.division.at))
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
            pair
            for _, around in _interrupted(expression)
            for denominator, division in around
            for pair in _pairs(denominator.span, division)
        )
    )


def _from_numerator(expression: Expression) -> Pairs:
    """Relate the numerators in between to the same divisions."""
    return [
        pair
        for between, around in _interrupted(expression)
        for _, division in around
        for numerator in between
        for pair in _pairs(numerator.span, division)
    ]


def _to_argument(argument: str, expression: Expression) -> Pairs:
    """Relate an operator to all positions of one of its arguments."""
    return [
        (at, frozenset(range(*(node.left if argument == FIRST else node.right).span)))
        for node in nodes(expression.tree)
        if isinstance(node, Operation)
        for at in node.at
    ]


def _to_operator_above(expression: Expression) -> Pairs:
    return [
        (at, frozenset(place.above.at))
        for node, place in places(expression.tree)
        if isinstance(node, Operation) and place.above is not None
        for at in node.at
    ]


def _to_other_argument(expression: Expression) -> Pairs:
    """Relate a number to the other argument of its operator, if that is a number as well."""
    return [
        pair
        for node in nodes(expression.tree)
        if isinstance(node, Operation) and _are_numbers(node.left, node.right)
        for one, other in ((node.left, node.right), (node.right, node.left))
        for pair in _pairs(one.span, range(*other.span))
    ]


def _are_numbers(left: Node, right: Node) -> bool:
    return isinstance(left, Number) and isinstance(right, Number)


def _digits(expression: Expression) -> Iterator[list[int]]:
    """Iterate over the positions of the digits of each number, without sign and point."""
    for number, _ in numbers(expression):
        yield [at for at in range(*number.span) if expression.question[at - 1].isdigit()]


def _to_next_digit(expression: Expression) -> Pairs:
    return [
        (digit, frozenset({following}))
        for digits in _digits(expression)
        for digit, following in pairwise(digits)
    ]


def _to_ones_digit(expression: Expression) -> Pairs:
    digit_place = labels(expression)[DIGIT_PLACE]
    pairs: Pairs = []
    for digits in _digits(expression):
        ones = next(at for at in digits if digit_place[at] == ONES)
        pairs += [(at, frozenset({ones})) for at in digits if at != ones]
    return pairs


def _to_closing(expression: Expression) -> Pairs:
    """Relate opening to closing parentheses, of which a question has none elsewhere."""
    opened: list[int] = []
    pairs: Pairs = []
    for at, character in enumerate(expression.question, start=1):
        if character == "(":
            opened.append(at)
        elif character == ")":
            pairs.append((opened.pop(), frozenset({at})))
    return pairs


def _inverse(relation: Callable[[P], Pairs]) -> Callable[[P], Pairs]:
    """Relate each key to its query."""
    return lambda parsed: [
        (key, frozenset({query})) for query, keys in relation(parsed) for key in keys
    ]


def _positions(span: Span) -> range:
    """Return the source positions of some characters of a question."""
    return range(span[0] + 1, span[1] + 1)


def _to_asked_digit(question: str) -> Pairs:
    """Relate the name of a digit to the digit, if that is written and there are others."""
    digit = asked_digit(question)
    if digit is None or digit[1] < digit[2][0] or len(_positions(digit[2])) == 1:
        return []
    name, asked, _ = digit
    return [(at, frozenset({asked + 1})) for at in _positions(name)]


def _to_other_digits(question: str) -> Pairs:
    """Relate the name of a digit to each of the digits that it does not name."""
    if (digit := asked_digit(question)) is None:
        return []
    name, asked, number = digit
    others = [digit for digit in _positions(number) if digit != asked + 1]
    return [(at, frozenset({digit})) for digit in others for at in _positions(name)]


def _to_name(to_digits: Callable[[str], Pairs], question: str) -> Pairs:
    """Relate digits to all characters of the name, given the pairs of the other direction."""
    pairs = to_digits(question)
    name = frozenset(at for at, _ in pairs)
    return [(digit, name) for digit in sorted({at for _, digits in pairs for at in digits})]


def _in_term(from_group: int, to_group: int, question: str) -> Pairs:
    """Relate one part of each term of a polynomial to another part, both groups of `terms`."""
    pairs: Pairs = []
    for parts, start in terms(question):
        if parts[from_group] and parts[to_group]:
            queries, keys = (
                _positions((start + parts.start(group), start + parts.end(group)))
                for group in (from_group, to_group)
            )
            pairs += [(at, frozenset(keys)) for at in queries]
    return pairs


def _to_neighbour(step: int, question: str) -> Pairs:
    """Relate each number of a list to the next larger one (1) or the next smaller one (-1)."""
    spans, values = items(question)
    pairs: Pairs = []
    for span, value in zip(spans, values, strict=True):
        beyond = [step * other for other in values if step * other > step * value]
        keys = frozenset(
            at
            for other, number in zip(spans, values, strict=True)
            if beyond and step * number == min(beyond)
            for at in _positions(other)
        )
        pairs += [(at, keys) for at in _positions(span) if keys]
    return pairs


def _only(kind: type[P], relation: Callable[[P], Pairs]) -> Relation:
    """Let a relation of one kind of question find nothing in the other."""
    return lambda parsed: relation(parsed) if isinstance(parsed, kind) else []


PAST_NUMERATOR = "denominator to its division, past a numerator"
TO_DIGIT, TO_NAME = "name of a digit to that digit", "digit asked for to its name"

_IN_EXPRESSIONS: Mapping[str, Callable[[Expression], Pairs]] = {
    "first argument to its operator": partial(_to_operator, FIRST),
    "second argument to its operator": partial(_to_operator, SECOND),
    "denominator to its division": _to_division,
    PAST_NUMERATOR: _past_numerator,
    "operator to its first argument": partial(_to_argument, FIRST),
    "operator to its second argument": partial(_to_argument, SECOND),
    "operator to the operator above": _to_operator_above,
    "number to the other argument": _to_other_argument,
    "digit to the next digit": _to_next_digit,
    "digit to the digit before": _inverse(_to_next_digit),
    "digit to its number's ones digit": _to_ones_digit,
    "opening to closing parenthesis": _to_closing,
    "closing to opening parenthesis": _inverse(_to_closing),
}
_IN_TEXTS: Mapping[str, Callable[[str], Pairs]] = {
    TO_DIGIT: _to_asked_digit,
    TO_NAME: partial(_to_name, _to_asked_digit),
    "coefficient to its exponent": partial(_in_term, 1, 3),
    "exponent to its coefficient": partial(_in_term, 3, 1),
    "number to the next larger one": partial(_to_neighbour, 1),
    "number to the next smaller one": partial(_to_neighbour, -1),
}
OF_EXPRESSIONS = {name: _only(Expression, find) for name, find in _IN_EXPRESSIONS.items()}
RELATIONS = {**OF_EXPRESSIONS, **{name: _only(str, find) for name, find in _IN_TEXTS.items()}}

# For a relation that skips positions in between, or that is about one digit of several: those other
# positions, related to the same keys, or the same positions, related to the other digits.
SKIPPED = {
    PAST_NUMERATOR: _only(Expression, _from_numerator),
    TO_DIGIT: _only(str, _to_other_digits),
    TO_NAME: _only(str, partial(_to_name, _to_other_digits)),
}
