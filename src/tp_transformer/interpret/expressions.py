"""Arithmetic questions as trees that know where in the question each of their parts stands.

Positions are those of the source: 0 is the start symbol, 1 the question's first character, and the
end symbol comes after its last. The values are exact. Questions that put an expression into words
are read where their form is one of `WORDED`; the difference and the distance between two numbers
are not, since they have no first and second argument.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

Span = tuple[int, int]  # the first position and the one after the last

ADDITION, SUBTRACTION, MULTIPLICATION, DIVISION = "+", "-", "*", "/"

# What may stand before an expression that is written with signs.
LEADS = ("", "Calculate ", "Evaluate ", "What is ", "What is the value of ", "Work out ")

# Operations in words; a and b are their first and second argument, [words] are their operator.
WORDED = {
    ADDITION: (
        "[Add] a and b.",
        "[Add together] a and b.",
        "[Put together] a and b.",
        "[Sum] a and b.",
        "[Total of] a and b.",
        "What is a [plus] b?",
    ),
    SUBTRACTION: (
        "What is a [minus] b?",
        "What is a [take away] b?",
        "What is b [less than] a?",
        "[Subtract] b [from] a.",
    ),
    MULTIPLICATION: (
        "[Multiply] a and b.",
        "[Product of] a and b.",
        "What is the [product of] a and b?",
        "What is a [times] b?",
        "a [times] b",
    ),
    DIVISION: (
        "[Divide] a [by] b.",
        "Calculate a [divided by] b.",
        "What is a [divided by] b?",
        "a [divided by] b",
    ),
}

LONGEST = 1000  # characters; the dataset's questions have 160, and Python's own limits are far off
_DIGITS = r"[0-9]+(?:\.[0-9]+)?"
_NUMBER = f"-?{_DIGITS}"
_TOKEN = re.compile(f" *(?:({_DIGITS})|([^ ]))")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A numeral, its sign included where it touches the digits."""

    span: Span
    value: Fraction
    parentheses: tuple[Span, ...] = ()  # around it, from the inside out


@dataclass(frozen=True, kw_only=True)
class Negation:
    """A minus before something that is not a numeral, or not directly before one."""

    at: int
    operand: "Node"
    span: Span
    parentheses: tuple[Span, ...] = ()
    value: Fraction | None = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A sum, difference, product or quotient; `at` are the positions of its sign or words."""

    operator: str
    at: tuple[int, ...]
    left: "Node"
    right: "Node"
    span: Span
    parentheses: tuple[Span, ...] = ()
    value: Fraction | None = field(compare=False)  # None under a division by zero


Node = Number | Negation | Operation


@dataclass(frozen=True, kw_only=True)
class Expression:
    """The expression that a question asks for."""

    question: str
    tree: Node

    @property
    def value(self) -> Fraction | None:
        """What it comes to; None if something is divided by zero."""
        return self.tree.value


def parse(question: str) -> Expression | None:
    """The expression inside a question; None where there is none that is known."""
    if len(question) > LONGEST:
        return None
    tree = _worded(question) or _signed(question)
    return None if tree is None else Expression(question=question, tree=tree)


def outer_span(node: Node) -> Span:
    """Where a node stands, with the parentheses around it."""
    return node.parentheses[-1] if node.parentheses else node.span


def nodes(tree: Node) -> Iterator[Node]:
    """A node and all below it, each before what is below it, from left to right."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Operation):
            waiting += [node.right, node.left]
        elif isinstance(node, Negation):
            waiting.append(node.operand)


# Expressions in signs: operators wait on a stack until one that binds less tightly comes, so that
# no depth of nesting can exhaust Python's own stack.

_BINDING = {"(": 0, ADDITION: 1, SUBTRACTION: 1, MULTIPLICATION: 2, DIVISION: 2, "negate": 3}
_LOOSEST = 1  # of all operators; a parenthesis waits for its other half


class _NoExpressionError(Exception):
    """The text is not an expression."""


def _signed(question: str) -> Node | None:
    text = question[:-1] if question.endswith((".", "?")) else question
    # The longest lead first: `What is ` begins `What is the value of `, too.
    lead = max((lead for lead in LEADS if question.startswith(lead)), key=len)
    try:
        return _Reader().read(text, len(lead))
    except _NoExpressionError:
        return None


class _Reader:
    """One pass over an expression, from left to right."""

    def __init__(self) -> None:
        self._operands: list[Node] = []
        self._operators: list[tuple[str, int]] = []  # waiting, with their positions
        self._is_operand_next = True

    def read(self, text: str, start: int) -> Node:
        """The tree of what follows a lead."""
        place = start
        while found := _TOKEN.match(text, place):
            place = found.end()
            number, sign = found.groups()
            # One more than the place in the question: position 0 is the start symbol.
            if number is not None:
                self._number(number, found.start(1) + 1)
            else:
                self._sign(sign, found.start(2) + 1)
        if self._is_operand_next:
            raise _NoExpressionError
        self._apply(_LOOSEST)
        if self._operators:  # a parenthesis that was not closed
            raise _NoExpressionError
        return self._operands.pop()

    def _number(self, digits: str, at: int) -> None:
        if not self._is_operand_next:
            raise _NoExpressionError
        sign = ""
        if self._operators and self._operators[-1] == ("negate", at - 1):
            self._operators.pop()
            sign = "-"
        span = (at - len(sign), at + len(digits))
        self._operands.append(Number(span=span, value=Fraction(sign + digits)))
        self._is_operand_next = False

    def _sign(self, sign: str, at: int) -> None:
        if self._is_operand_next and sign in {"(", SUBTRACTION}:
            self._operators.append(("negate" if sign == SUBTRACTION else "(", at))
        elif not self._is_operand_next and sign == ")":
            self._close(at)
        elif not self._is_operand_next and sign in WORDED:
            self._apply(_BINDING[sign])
            self._operators.append((sign, at))
            self._is_operand_next = True
        else:
            raise _NoExpressionError

    def _close(self, at: int) -> None:
        self._apply(_LOOSEST)
        if not self._operators:
            raise _NoExpressionError
        _, opening = self._operators.pop()
        inner = self._operands.pop()
        around = (*inner.parentheses, (opening, at + 1))
        self._operands.append(replace(inner, parentheses=around))

    def _apply(self, binding: int) -> None:
        """Give the waiting operators that bind at least as tightly their operands."""
        while self._operators and _BINDING[self._operators[-1][0]] >= binding:
            operator, at = self._operators.pop()
            right = self._operands.pop()
            if operator == "negate":
                value = None if right.value is None else -right.value
                span = (at, outer_span(right)[1])
                self._operands.append(Negation(at=at, operand=right, span=span, value=value))
            else:
                self._operands.append(_operation(operator, (at,), self._operands.pop(), right))


def _operation(operator: str, at: tuple[int, ...], left: Node, right: Node) -> Operation:
    edges = (*outer_span(left), *outer_span(right))
    return Operation(
        operator=operator,
        at=at,
        left=left,
        right=right,
        span=(min(edges), max(edges)),
        value=_value(operator, left.value, right.value),
    )


def _value(operator: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    if left is None or right is None:
        return None
    if operator == ADDITION:
        return left + right
    if operator == SUBTRACTION:
        return left - right
    if operator == MULTIPLICATION:
        return left * right
    return left / right if right else None


# Expressions in words.


def _pattern(form: str) -> re.Pattern[str]:
    pieces = []
    for piece in re.split(r"(\[.*?\]|\b[ab]\b)", form):
        if piece in {"a", "b"}:
            pieces.append(f"(?P<{piece}>{_NUMBER})")
        elif piece.startswith("["):
            pieces.append(f"({piece[1:-1]})")
        else:
            pieces.append(re.escape(piece))
    return re.compile("".join(pieces))


_PATTERNS = [(operator, _pattern(form)) for operator, forms in WORDED.items() for form in forms]


def _worded(question: str) -> Node | None:
    for operator, pattern in _PATTERNS:
        found = pattern.fullmatch(question)
        if found:
            named = {pattern.groupindex[name] for name in "ab"}
            words = [found.span(n) for n in range(1, pattern.groups + 1) if n not in named]
            at = tuple(place + 1 for start, end in words for place in range(start, end))
            left, right = (
                Number(
                    span=(found.start(name) + 1, found.end(name) + 1), value=Fraction(found[name])
                )
                for name in "ab"
            )
            return _operation(operator, at, left, right)
    return None
