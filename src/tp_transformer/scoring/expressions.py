"""Arithmetic expressions in questions and answers, as trees; one parser reads both.

`parse` finds the expression that a question asks for. Each node of its tree knows its positions,
which are source positions: 0 is the start token, 1 is the first character of the question.
Questions that state an expression in words are read if their form is one of `WORDED`; the
difference and the distance between two numbers are not, since they have no first and second
argument.

`parse_answer` reads the algebra in which answers are written: variables, square roots, integer
powers and comma-separated lists, within bounds on length, digits, exponents and nesting.

The parser keeps operators on a stack until an operator that binds less tightly follows, so no depth
of nesting can exhaust the Python stack. Nothing is ever evaluated as code.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

Span = tuple[int, int]  # the first position and the position after the last

ADDITION, SUBTRACTION, MULTIPLICATION, DIVISION = "+", "-", "*", "/"
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul, "/": truediv}

# Texts that may precede an expression written with operator signs.
LEADS = ("", "Calculate ", "Evaluate ", "What is ", "What is the value of ", "Work out ")

# Operations in words: a and b are the first and second argument, [words] are the operator.
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

LONGEST = 1000  # characters of a question; the dataset has at most 160
LONGEST_ANSWER = 60  # characters
MAX_DIGITS = 40  # of a number in an answer
MAX_EXPONENT = 100
MAX_DEPTH = 20  # of parentheses in an answer: its tree is traversed recursively
HALF = Fraction(1, 2)
_DIGITS = r"[0-9]+(?:\.[0-9]+)?"
_NUMBER = f"-?{_DIGITS}"
_TOKEN = re.compile(rf" *(?:({_DIGITS})|(\*\*|sqrt|[^ ]))")


@dataclass(frozen=True, kw_only=True)
class _Located:
    """A node of a tree, with its positions."""

    span: Span
    parentheses: tuple[Span, ...] = ()  # around it, innermost first


@dataclass(frozen=True, kw_only=True)
class Number(_Located):
    """A numeral; in a question it includes a minus sign directly before its digits."""

    value: Fraction


@dataclass(frozen=True, kw_only=True)
class Variable(_Located):
    """A single letter, in an answer."""

    name: str
    value: None = None


@dataclass(frozen=True, kw_only=True)
class Negation(_Located):
    """A minus sign that is not part of a numeral."""

    at: int
    operand: "Node"
    value: Fraction | None = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Power(_Located):
    """An integer power or a square root, in an answer; its value is not computed."""

    operand: "Node"
    exponent: int | Fraction  # 1/2 for a square root
    value: None = None


@dataclass(frozen=True, kw_only=True)
class Operation(_Located):
    """A sum, difference, product or quotient; `at` are the positions of its sign or words."""

    operator: str
    at: tuple[int, ...]
    left: "Node"
    right: "Node"
    value: Fraction | None = field(compare=False)  # None under a division by zero


Node = Number | Variable | Negation | Power | Operation


@dataclass(frozen=True, kw_only=True)
class Expression:
    """The expression that a question asks for; its numbers, negations and operations."""

    question: str
    tree: Node

    @property
    def value(self) -> Fraction | None:
        """Its exact value; None if a divisor is zero."""
        return self.tree.value


class UnreadableError(ValueError):
    """The text is not an expression of the expected kind."""


def parse(question: str) -> Expression | None:
    """Return the expression inside a question, or None if there is none of a known form."""
    if len(question) > LONGEST:
        return None
    tree = _worded(question)
    if tree is None:
        text = question[:-1] if question.endswith((".", "?")) else question
        # The longest lead: `What is the value of ` also begins with `What is `.
        lead = max((lead for lead in LEADS if question.startswith(lead)), key=len)
        try:
            (tree,) = _Parser(is_algebra=False).read(text, len(lead))
        except UnreadableError:
            return None
    return Expression(question=question, tree=tree)


def parse_answer(text: str) -> list[Node]:
    """Return the comma-separated expressions of an answer.

    Raises:
        UnreadableError: if the text is anything else, or exceeds the bounds.
    """
    if len(text) > LONGEST_ANSWER:
        raise UnreadableError(f"longer than {LONGEST_ANSWER} characters")
    return _Parser(is_algebra=True).read(text, 0)


def outer_span(node: Node) -> Span:
    """Return the positions of a node with the parentheses around it."""
    return node.parentheses[-1] if node.parentheses else node.span


def nodes(tree: Node) -> Iterator[Node]:
    """Iterate over a tree from left to right, each node before its children."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Operation):
            waiting += [node.right, node.left]
        elif isinstance(node, Negation | Power):
            waiting.append(node.operand)


_NEGATE, _OPEN, _ROOT = "negate", "(", "sqrt"
_BINDING = {ADDITION: 1, SUBTRACTION: 1, MULTIPLICATION: 2, DIVISION: 2, _NEGATE: 3}
_LOOSEST = 1  # of all operators; an opening parenthesis stays on the stack until it is closed


class _Parser:
    """One pass over a text, from left to right."""

    def __init__(self, *, is_algebra: bool) -> None:
        self._is_algebra = is_algebra
        self._operands: list[Node] = []
        self._operators: list[tuple[str, int]] = []  # on the stack, with their positions
        self._is_operand_next = True
        self._tokens: Iterator[re.Match[str]] = iter(())

    def read(self, text: str, start: int) -> list[Node]:
        """Return the trees of the expressions after a lead."""
        self._tokens = _TOKEN.finditer(text, start)
        found = []
        for token in self._tokens:
            # One more than the place in the text: position 0 is the start token.
            if token[1] is not None:
                self._number(token[1], token.start(1) + 1)
            elif token[2] == "," and self._is_algebra:
                found.append(self._finish())
                self._is_operand_next = True
            else:
                self._sign(token[2], token.start(2) + 1)
        return [*found, self._finish()]

    def _finish(self) -> Node:
        if self._is_operand_next:
            raise UnreadableError("an operand is missing")
        self._apply(_LOOSEST)
        if self._operators:
            raise UnreadableError("a parenthesis is not closed")
        return self._operands.pop()

    def _expect_operand(self, text: str, *, is_expected: bool = True) -> None:
        if self._is_operand_next != is_expected:
            raise UnreadableError(f"{text!r} is not expected here")

    def _number(self, digits: str, at: int) -> None:
        self._expect_operand(digits)
        if self._is_algebra and len(digits) > MAX_DIGITS:
            raise UnreadableError(f"more than {MAX_DIGITS} digits")
        sign = ""
        # In algebra a power binds more tightly than a sign, so the sign stays a node of its own.
        if not self._is_algebra and self._operators and self._operators[-1] == (_NEGATE, at - 1):
            self._operators.pop()
            sign = "-"
        span = (at - len(sign), at + len(digits))
        self._operands.append(Number(span=span, value=Fraction(sign + digits)))
        self._is_operand_next = False

    def _sign(self, sign: str, at: int) -> None:
        if sign == ")":
            self._close(at)
        elif self._is_operand_next:
            self._prefix(sign, at)
        elif sign == "**" and self._is_algebra:
            self._power()
        elif sign in WORDED:
            self._apply(_BINDING[sign])
            self._operators.append((sign, at))
            self._is_operand_next = True
        else:
            self._expect_operand(sign)

    def _prefix(self, sign: str, at: int) -> None:
        """Read what may stand before an operand, or a variable."""
        if sign == SUBTRACTION:
            self._operators.append((_NEGATE, at))
        elif sign == _OPEN:
            self._open(sign, at)
        elif self._is_algebra and sign == _ROOT:
            opening = next(self._tokens, None)
            if opening is None or opening[2] != _OPEN:
                raise UnreadableError("a root without parentheses")
            self._open(sign, at)
        elif self._is_algebra and "a" <= sign <= "z":
            self._operands.append(Variable(name=sign, span=(at, at + 1)))
            self._is_operand_next = False
        elif not self._is_algebra or sign != ADDITION:
            raise UnreadableError(f"{sign!r} is not expected here")

    def _open(self, sign: str, at: int) -> None:
        n_open = sum(operator in {_OPEN, _ROOT} for operator, _ in self._operators)
        if self._is_algebra and n_open >= MAX_DEPTH:
            raise UnreadableError(f"more than {MAX_DEPTH} nested parentheses")
        self._operators.append((sign, at))

    def _close(self, at: int) -> None:
        self._expect_operand(")", is_expected=False)
        self._apply(_LOOSEST)
        if not self._operators:
            raise UnreadableError("a parenthesis is not opened")
        sign, opening = self._operators.pop()
        inner = self._operands.pop()
        span = (opening, at + 1)
        if sign == _ROOT:
            self._operands.append(Power(operand=inner, exponent=HALF, span=span))
        else:
            self._operands.append(replace(inner, parentheses=(*inner.parentheses, span)))

    def _power(self) -> None:
        token = next(self._tokens, None)
        is_negative = token is not None and token[2] == SUBTRACTION
        if is_negative:
            token = next(self._tokens, None)
        digits = "" if token is None else token[1] or ""
        is_short = digits.isdigit() and len(digits) <= MAX_DIGITS
        if token is None or not is_short or int(digits) > MAX_EXPONENT:
            raise UnreadableError("an exponent is not a small integer")
        base = self._operands.pop()
        if isinstance(base, Power) and base.exponent != HALF and not base.parentheses:
            raise UnreadableError("a power of a power without parentheses")
        exponent = -int(digits) if is_negative else int(digits)
        span = (outer_span(base)[0], token.end() + 1)
        self._operands.append(Power(operand=base, exponent=exponent, span=span))

    def _apply(self, binding: int) -> None:
        """Apply the operators on the stack that bind at least as tightly to their operands."""
        while self._operators and _BINDING.get(self._operators[-1][0], 0) >= binding:
            operator, at = self._operators.pop()
            right = self._operands.pop()
            if operator == _NEGATE:
                value = None if right.value is None else -right.value
                span = (at, outer_span(right)[1])
                self._operands.append(Negation(at=at, operand=right, span=span, value=value))
            else:
                self._operands.append(_operation(operator, (at,), self._operands.pop(), right))


def _operation(operator: str, at: tuple[int, ...], left: Node, right: Node) -> Operation:
    edges = (*outer_span(left), *outer_span(right))
    is_undefined = left.value is None or right.value is None
    is_undefined |= operator == DIVISION and right.value == 0
    return Operation(
        operator=operator,
        at=at,
        left=left,
        right=right,
        span=(min(edges), max(edges)),
        value=None if is_undefined else OPERATORS[operator](left.value, right.value),
    )


def _pattern(form: str) -> re.Pattern[str]:
    pieces = []
    for piece in re.split(r"(\[.*?\]|\b[ab]\b)", form):
        if piece in {"a", "b"}:
            pieces.append(f"(?P<{piece}>{_NUMBER})")
        else:
            pieces.append(f"({piece[1:-1]})" if piece.startswith("[") else re.escape(piece))
    return re.compile("".join(pieces))


_PATTERNS = [(operator, _pattern(form)) for operator, forms in WORDED.items() for form in forms]


def _worded(question: str) -> Node | None:
    for operator, pattern in _PATTERNS:
        found = pattern.fullmatch(question)
        if found:
            named = {pattern.groupindex[name] for name in "ab"}
            words = [found.span(n) for n in range(1, pattern.groups + 1) if n not in named]
            at = tuple(place + 1 for start, end in words for place in range(start, end))
            spans = {name: (found.start(name) + 1, found.end(name) + 1) for name in "ab"}
            left, right = (Number(span=spans[x], value=Fraction(found[x])) for x in "ab")
            return _operation(operator, at, left, right)
    return None
