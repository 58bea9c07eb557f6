"""Labels of questions that are not arithmetic expressions: numerals, lists, digits, polynomials.

All positions are source positions: 0 is the start token, 1 is the first character of the question.

- Every numeral gets the places of its digits.
- `Which is the biggest value?  (a) 3  (b) -1/2  (c) 7` and `Sort 3, -1, 7.` have a list: its
  numbers get their item, counted from 1, and their rank.
- `What is the tens digit of 5316?` asks for one digit: digits are asked for or not.
- `Find the second derivative of 3*x**4 - 2*x.` has a polynomial in one variable: its characters get
  their part of a term, and the degree of their term.

Composed questions, whose numbers are the values of variables, have labels for their numerals only.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from tp_transformer.interpret.core.structure import DIGIT_PLACE, digit_places

ITEM, RANK, ASKED, PART, DEGREE = WORDING_LABELS = (
    "item",
    "rank",
    "asked for",
    "part",
    "degree",
)
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
    for found in _NUMERAL.finditer(question):
        yield found.start() + 1, found[0]


def wording_labels(question: str) -> dict[str, list[str | None]]:
    """Return the labels of lists, digits and polynomials that occur, at every source position."""
    labels: dict[str, list[str | None]] = {}
    for find in (_in_list, _in_digits, _in_polynomial):
        for label, (start, end), value in find(question):
            own = labels.setdefault(label, [None] * (len(question) + 2))
            own[start + 1 : end + 1] = [value] * (end - start)
    return labels


Marks = Iterator[tuple[str, tuple[int, int], str]]  # label, characters of the question, value
Spans = list[tuple[int, int]]  # characters of the question


def items(question: str) -> tuple[Spans, list[Fraction]]:
    """Find the numbers of a list, and their values; none if a denominator is 0."""
    spans = [found.span(1) for found in _OPTION.finditer(question)]
    if not spans and (row := _LIST.search(question)):
        spans = [found.span() for found in re.compile(_ITEM).finditer(question, *row.span())]
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


def asked_digit(question: str) -> tuple[tuple[int, int], int, tuple[int, int]] | None:
    """Find the name of a digit, the index of the digit asked for, and the number.

    The index is before the number if the digit is a zero that is not written.
    """
    found = _DIGIT.fullmatch(question)
    if found is None:
        return None
    return found.span(1), found.end(2) - 1 - DIGIT_NAMES.index(found[1]), found.span(2)


def _in_digits(question: str) -> Marks:
    if found := asked_digit(question):
        _, asked, number = found
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
    polynomials = (found for found in _POLYNOMIAL.finditer(question) if "*" in found[0])
    found = next(polynomials, None)
    if found is None or len(set(re.findall("[a-z]", found[0]))) != 1:
        return
    for term in re.compile(r"[0-9a-z*]+").finditer(question, *found.span()):
        parts = _PARTS.fullmatch(term[0])
        assert parts is not None  # noqa: S101, terms of `_POLYNOMIAL` consist of these parts
        yield parts, term.start()
