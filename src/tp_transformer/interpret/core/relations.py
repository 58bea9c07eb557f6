"""Labels, relations and places in questions: expressions, lists, digits and polynomials.

Those of expressions are defined in `structure`; `RELATIONS`, `SKIPPED` and `PLACES` add those in
the text of questions that are not arithmetic expressions. These take what `Sample.parsed` has for a
question: its expression, or its text if it has none.

- Every numeral gets the places of its digits.
- `Which is the biggest value?  (a) 3  (b) -1/2  (c) 7` and `Sort 3, -1, 7.` have a list: its
  numbers get their item, counted from 1, and their rank.
- `What is the tens digit of 5316?` asks for one digit: digits are asked for or not.
- `Find the second derivative of 3*x**4 - 2*x.` has a polynomial in one variable: its characters get
  their part of a term, and the degree of their term.

Composed questions, whose numbers are the values of variables, have labels for their numerals only.

All positions are source positions: 0 is the start token, 1 is the first character of the question.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TypeVar

from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.structure import DIGIT_PLACE, Pairs, digit_places, labelled
from tp_transformer.scoring.expressions import Expression

T = TypeVar("T")
Parsed = Expression | str
Relation = Callable[[Parsed], Pairs]
PositionFinder = Callable[[Parsed], list[int]]
Span = tuple[int, int]  # characters of the question
Marks = Iterator[tuple[str, Span, str]]  # label, characters, value

ITEM, RANK, ASKED, PART, DEGREE = WORDING_LABELS = ("item", "rank", "asked for", "part", "degree")
LARGEST, SMALLEST, BETWEEN = "largest", "smallest", "between"
YES, NO = "yes", "no"
COEFFICIENT, VARIABLE, EXPONENT = "coefficient", "variable", "exponent"

# The words of numbers__place_value for a digit, by its power of ten.
DIGIT_NAMES = (
    "units",
    "tens",
    "hundreds",
    "thousands",
    "ten thousands",
    "hundred thousands",
    "millions",
    "ten millions",
    "hundred millions",
    "billions",
)

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


def question_labels(question: str) -> dict[str, list[str | None]]:
    """Return the labels at every source position of a question that is not an expression.

    There are always digit places; the other labels are those that occur.
    """
    places: list[str | None] = [None] * (len(question) + 2)
    for start, numeral in numerals(question):
        places[start : start + len(numeral)] = digit_places(numeral)
    return {DIGIT_PLACE: places, **wording_labels(question)}


def numerals(question: str) -> Iterator[tuple[int, str]]:
    """Find the numerals of a question, with the source position of their first character."""
    for match in _NUMERAL.finditer(question):
        yield match.start() + 1, match[0]


def wording_labels(question: str) -> dict[str, list[str | None]]:
    """Return the labels of lists, digits and polynomials that occur, at every source position."""
    labels: dict[str, list[str | None]] = {}
    for find in (_in_list, _in_digits, _in_polynomial):
        for label, (start, end), value in find(question):
            values = labels.setdefault(label, [None] * (len(question) + 2))
            values[start + 1 : end + 1] = [value] * (end - start)
    return labels


def items(question: str) -> tuple[list[Span], list[Fraction]]:
    """Find the numbers of a list, and their values; none if a denominator is 0."""
    spans = [option.span(1) for option in _OPTION.finditer(question)]
    if not spans and (row := _LIST.search(question)):
        spans = [item.span() for item in re.compile(_ITEM).finditer(question, *row.span())]
    texts = [question[start:end] for start, end in spans]
    if any(_HAS_NO_VALUE.search(text) for text in texts):
        return [], []
    return spans, [Fraction(text) for text in texts]


def _in_list(question: str) -> Marks:
    spans, values = items(question)
    for number, (span, value) in enumerate(zip(spans, values, strict=True), start=1):
        yield ITEM, span, str(number)
        if min(values) < max(values):
            extreme = {max(values): LARGEST, min(values): SMALLEST}
            yield RANK, span, extreme.get(value, BETWEEN)


def asked_digit(question: str) -> tuple[Span, int, Span] | None:
    """Find the name of a digit, the index of the digit asked for, and the number.

    The index is before the number if the digit is a zero that is not written.
    """
    match = _DIGIT.fullmatch(question)
    if match is None:
        return None
    return match.span(1), match.end(2) - 1 - DIGIT_NAMES.index(match[1]), match.span(2)


def _in_digits(question: str) -> Marks:
    if digit := asked_digit(question):
        _, asked, number = digit
        for at in range(*number):
            yield ASKED, (at, at + 1), YES if at == asked else NO


def _in_polynomial(question: str) -> Marks:
    for parts, start in terms(question):
        degree = (parts[3] or "1") if parts[2] else "0"
        yield DEGREE, (start, start + len(parts[0])), degree
        for group, part in enumerate((COEFFICIENT, VARIABLE, EXPONENT), start=1):
            if parts[group]:
                yield PART, (start + parts.start(group), start + parts.end(group)), part


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
        pairs: Pairs = []
        for parts, start in terms(question):
            if parts[from_group] and parts[to_group]:
                queries, keys = (
                    _positions((start + parts.start(group), start + parts.end(group)))
                    for group in (from_group, to_group)
                )
                pairs += [(at, frozenset(keys)) for at in queries]
        return pairs

    return relation


def _to_neighbour(step: int) -> Callable[[str], Pairs]:
    """Relate each number of a list to the next larger one (1) or the next smaller one (-1)."""

    def relation(question: str) -> Pairs:
        spans, values = items(question)
        pairs: Pairs = []
        for span, value in zip(spans, values, strict=True):
            beyond = [step * other for other in values if step * other > step * value]
            keys = {
                at
                for other, number in zip(spans, values, strict=True)
                if beyond and step * number == min(beyond)
                for at in _positions(other)
            }
            if keys:
                pairs += [(at, frozenset(keys)) for at in _positions(span)]
        return pairs

    return relation


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
        "numbers": labelled(question_labels, DIGIT_PLACE),
        "digit asked for": labelled(wording_labels, ASKED, YES),
        "coefficients": labelled(wording_labels, PART, COEFFICIENT),
        "exponents": labelled(wording_labels, PART, EXPONENT),
        "items of a list": labelled(wording_labels, ITEM),
    },
)
