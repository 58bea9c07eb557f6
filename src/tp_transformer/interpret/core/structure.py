"""The structure of a question, position by position: labels and places.

`labels` gives every source position its labels, and `PLACES` are functions that find, for example,
the positions of all denominators. Both take what `Sample.parsed` has for a question: its
expression, or its text if it has none.

- The numerals of an expression have a side of the fraction, an argument, an operator and a depth.
- Every numeral, also of other questions, has the places of its digits.
- `Which is the biggest value?  (a) 3  (b) -1/2  (c) 7` and `Sort 3, -1, 7.` have a list: its
  numbers get their item, counted from 1, and their rank.
- `What is the tens digit of 5316?` asks for one digit: digits are asked for or not.
- `Find the second derivative of 3*x**4 - 2*x.` has a polynomial in one variable: its characters get
  their part of a term, and the degree of their term.

Composed questions, whose numbers are the values of variables, have labels for their numerals only.
All positions are source positions: 0 is the start token, 1 is the first character of the question.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tp_transformer.scoring.expressions import (
    DIVISION,
    MULTIPLICATION,
    Expression,
    Negation,
    Node,
    Number,
    Operation,
    Span,
    nodes,
)

Parsed = Expression | str
Labels = dict[str, list[str | None]]
# A label, the first position that has it, and its value there and at the positions after it.
Mark = tuple[str, int, Sequence[str | None]]
PositionFinder = Callable[[Parsed], list[int]]

NUMERATOR, DENOMINATOR = "numerator", "denominator"
FIRST, SECOND = "first", "second"
ONES, SIGN, POINT = "ones", "sign", "point"
LARGEST, SMALLEST, BETWEEN = "largest", "smallest", "between"
YES, NO = "yes", "no"
COEFFICIENT, VARIABLE, EXPONENT = "coefficient", "variable", "exponent"

SIDE, ARGUMENT, OPERATOR, DEPTH, DIGIT_PLACE = LABELS = (
    *("side", "argument", "operator", "depth"),
    "digit place",
)
ITEM, RANK, ASKED, PART, DEGREE = WORDING_LABELS = ("item", "rank", "asked for", "part", "degree")

# The words of numbers__place_value for a digit, by its power of ten.
DIGIT_NAMES = (
    *("units", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands"),
    *("millions", "ten millions", "hundred millions", "billions"),
)
_DIGIT_PLACES = {0: ONES, 1: "tens", 2: "hundreds", 3: "thousands", -1: "tenths", -2: "hundredths"}

_NUMERAL = re.compile(r"(?<![\w.)*])-?[0-9]+(?:\.[0-9]+)?|(?<![0-9.])[0-9]+(?:\.[0-9]+)?")
_ITEM = r"-?[0-9]+(?:\.[0-9]+|/[0-9]+)?"
_LIST = re.compile(rf"(?<![\w.,/])(?<!, ){_ITEM}(?:, {_ITEM})+(?![\w*(/]|,|\.[0-9])")
_HAS_NO_VALUE = re.compile(r"/0+$")
_OPTION = re.compile(rf"  \([a-z]\) ({_ITEM})(?=  |$)")
_DIGIT = re.compile(rf"What is the ({'|'.join(DIGIT_NAMES)}) digit of ([0-9]+)\?")
_TERM = r"-?(?:[0-9]+(?:\*[a-z](?:\*\*[0-9]+)?)?|[a-z](?:\*\*[0-9]+)?)"
_POLYNOMIAL = re.compile(
    rf"(?<![\w*.()/-])(?<![+*/-] ){_TERM}(?: [+-] {_TERM})*(?![\w*()/]| [+*/-] )"
)
_PARTS = re.compile(r"([0-9]+)?\*?([a-z])?(?:\*\*([0-9]+))?")


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


def numbers(expression: Expression) -> Iterator[tuple[Number, Place]]:
    """Iterate over the numbers of an expression with their places, from left to right."""
    for node, place in places(expression.tree):
        if isinstance(node, Number):
            yield node, place


def has_reversed_side(expression: Expression) -> bool:
    """Whether there is a fraction in a denominator, whose divisor is a numerator again."""
    return any(
        place.side == NUMERATOR and place.division is not None
        for _, place in places(expression.tree)
    )


def labels(parsed: Parsed) -> Labels:
    """Return each label at every source position, the start and end tokens included.

    Positions without a label have None. There are always digit places; other labels are those of
    an expression, or those that occur in another question.
    """
    if isinstance(parsed, str):
        return _spread(parsed, [DIGIT_PLACE], _wording_marks(parsed))
    marks: Iterator[Mark] = (
        (label, number.span[0], values)
        for number, place in numbers(parsed)
        for label, values in _number_labels(parsed.question, number.span, place).items()
    )
    return _spread(parsed.question, LABELS, marks)


def _spread(question: str, names: Sequence[str], marks: Iterator[Mark]) -> Labels:
    """Write marks into a list of all positions for each label."""
    n_positions = len(question) + 2
    of_question: Labels = {name: [None] * n_positions for name in names}
    for name, start, values in marks:
        of_question.setdefault(name, [None] * n_positions)[start : start + len(values)] = values
    return of_question


def _number_labels(question: str, span: Span, place: Place) -> dict[str, Sequence[str | None]]:
    start, end = span
    of_number: dict[str, str | None] = {
        SIDE: place.side,
        ARGUMENT: place.argument,
        OPERATOR: place.above.operator if place.above else None,
        DEPTH: str(place.depth),
    }
    repeated = {label: [value] * (end - start) for label, value in of_number.items()}
    return {**repeated, DIGIT_PLACE: digit_places(question[start - 1 : end - 1])}


def unreversed_sides(expression: Expression) -> list[str | None]:
    """Return the side without the reversal of section 5.1 at every source position."""
    marks = (
        (SIDE, number.span[0], [place.unreversed_side] * (number.span[1] - number.span[0]))
        for number, place in numbers(expression)
    )
    return _spread(expression.question, [SIDE], marks)[SIDE]


def digit_places(numeral: str) -> list[str | None]:
    """Return the place of each character of a numeral: ones, tens, …, tenths, sign, point."""
    integer = numeral.partition(".")[0]
    # The digit before the point has place 0, the digit after it -1.
    names: list[str | None] = []
    for at, character in enumerate(numeral):
        power = len(integer) - 1 - at
        power += power < 0
        name = {"-": SIGN, ".": POINT}.get(character)
        names.append(name or _DIGIT_PLACES.get(power, f"10^{power}"))
    return names


def numerals(question: str) -> Iterator[tuple[int, str]]:
    """Find the numerals of a question, with the source position of their first character."""
    for match in _NUMERAL.finditer(question):
        yield match.start() + 1, match[0]


def _wording_marks(question: str) -> Iterator[Mark]:
    """Find the labels of numerals, lists, digits and polynomials."""
    for at, numeral in numerals(question):
        yield DIGIT_PLACE, at, digit_places(numeral)
    spans, values = items(question)
    for item, ((start, end), value) in enumerate(zip(spans, values, strict=True), start=1):
        yield ITEM, start + 1, [str(item)] * (end - start)
        if min(values) < max(values):
            extreme = {max(values): LARGEST, min(values): SMALLEST}
            yield RANK, start + 1, [extreme.get(value, BETWEEN)] * (end - start)
    if digit := asked_digit(question):
        _, asked, (start, end) = digit
        yield ASKED, start + 1, [YES if at == asked else NO for at in range(start, end)]
    for parts, start in terms(question):
        degree = (parts[3] or "1") if parts[2] else "0"
        yield DEGREE, start + 1, [degree] * len(parts[0])
        for group, part in enumerate((COEFFICIENT, VARIABLE, EXPONENT), start=1):
            if parts[group]:
                yield PART, start + parts.start(group) + 1, [part] * len(parts[group])


def items(question: str) -> tuple[list[Span], list[Fraction]]:
    """Find the numbers of a list, by their characters, and their values; none if one is a/0."""
    spans = [option.span(1) for option in _OPTION.finditer(question)]
    if not spans and (row := _LIST.search(question)):
        spans = [item.span() for item in re.compile(_ITEM).finditer(question, *row.span())]
    texts = [question[start:end] for start, end in spans]
    if any(_HAS_NO_VALUE.search(text) for text in texts):
        return [], []
    return spans, [Fraction(text) for text in texts]


def asked_digit(question: str) -> tuple[Span, int, Span] | None:
    """Find the name of a digit, the index of the digit asked for, and the number.

    The index is before the number if the digit is a zero that is not written.
    """
    match = _DIGIT.fullmatch(question)
    if match is None:
        return None
    return match.span(1), match.end(2) - 1 - DIGIT_NAMES.index(match[1]), match.span(2)


def terms(question: str) -> Iterator[tuple[re.Match[str], int]]:
    """Find the terms of the first polynomial that has a power, with their first characters.

    Other letters may be words, such as `a`.
    """
    polynomials = (match for match in _POLYNOMIAL.finditer(question) if "*" in match[0])
    polynomial = next(polynomials, None)
    if polynomial is None or len(set(re.findall("[a-z]", polynomial[0]))) != 1:
        return
    for term in re.compile(r"[0-9a-z*]+").finditer(question, *polynomial.span()):
        parts = _PARTS.fullmatch(term[0])
        assert parts is not None  # noqa: S101, terms of `_POLYNOMIAL` consist of these parts
        yield parts, term.start()


def _labelled(label: str, *values: str) -> PositionFinder:
    """Find the positions with one of these values of a label, or with any value."""
    return lambda parsed: [
        at
        for at, value in enumerate(labels(parsed).get(label, ()))
        if value in values or (not values and value is not None)
    ]


def _operators(parsed: Parsed) -> list[int]:
    tree = () if isinstance(parsed, str) else nodes(parsed.tree)
    return sorted(at for node in tree if isinstance(node, Operation) for at in node.at)


PLACES: dict[str, PositionFinder] = {
    "numbers": _labelled(DIGIT_PLACE),
    "numerators": _labelled(SIDE, NUMERATOR),
    "denominators": _labelled(SIDE, DENOMINATOR),
    "first arguments": _labelled(ARGUMENT, FIRST),
    "second arguments": _labelled(ARGUMENT, SECOND),
    "operators": _operators,
    "digit asked for": _labelled(ASKED, YES),
    "coefficients": _labelled(PART, COEFFICIENT),
    "exponents": _labelled(PART, EXPONENT),
    "items of a list": _labelled(ITEM),
}
