"""Arithmetic expressions in questions and answers, as trees; one parser reads both.

`parse` finds the expression that a question asks for. Each node of its tree knows its positions,
which are source positions: 0 is the start token, 1 is the first character of the question.
Questions that state an expression in words are read if their form is one of `WORDED`; the
difference and the distance between two numbers are not, since they have no first and second
argument.

`parse_answer` reads the algebra in which answers are written: variables, square roots, integer
powers and comma-separated lists, within bounds on length, digits and exponents.

Python's own parser reads expressions, once their characters are known to be of this grammar. Its
syntax tree is converted into nodes; nothing is ever evaluated as code.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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

LONGEST = 300  # characters of a question; the dataset has at most 160
LONGEST_ANSWER = 60  # characters
MAX_DIGITS = 40  # of a number in an answer
MAX_EXPONENT = 100
HALF = Fraction(1, 2)
_DIGITS = r"[0-9]+(?:\.[0-9]+)?"
_NUMBER = f"-?{_DIGITS}"
_ARITHMETIC = re.compile(r"[0-9.+*/() -]*")
# A letter is a variable: none stands beside another, or beside a digit.
_ALGEBRA = re.compile(r"(?:[0-9.,+*/() -]|sqrt *(?=\()|(?<![a-z0-9])[a-z](?![a-z0-9]))*")
_SIGNS = {ast.Add: ADDITION, ast.Sub: SUBTRACTION, ast.Mult: MULTIPLICATION, ast.Div: DIVISION}


@dataclass(frozen=True, kw_only=True)
class _Located:
    """A node of a tree, with its positions."""

    span: Span  # without the parentheses around it


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
            (tree,) = _read(" " * len(lead) + text[len(lead) :], is_algebra=False)
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
    return _read(text, is_algebra=True)


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


def _read(text: str, *, is_algebra: bool) -> list[Node]:
    """Read expressions between commas; blanks may precede them."""
    grammar = _ALGEBRA if is_algebra else _ARITHMETIC
    if not grammar.fullmatch(text):
        raise UnreadableError(f"{text!r} has other characters than an expression")
    # As a list, with its bracket in the place of the start token: columns are source positions.
    source = f"[{text}]"
    try:
        # Python refuses numbers with leading zeros, as in 007.
        trees = ast.parse(re.sub("[0-9]", "1", source), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise UnreadableError(f"{text!r} is not an expression") from error
    if not isinstance(trees, ast.List) or len(trees.elts) != text.count(",") + 1:
        raise UnreadableError(f"{text!r} lacks an expression")
    reader = _Reader(source, is_algebra=is_algebra)
    return [reader.node(tree) for tree in trees.elts]


@dataclass(frozen=True)
class _Reader:
    """Converts syntax trees whose columns are source positions."""

    source: str
    is_algebra: bool

    def node(self, tree: ast.expr) -> Node:
        span = (tree.col_offset, tree.end_col_offset or 0)
        if isinstance(tree, ast.Constant):
            return self._number(span, span)
        if isinstance(tree, ast.BinOp) and type(tree.op) in _SIGNS:
            operator = _SIGNS[type(tree.op)]
            at = self.source.index(operator, tree.left.end_col_offset)
            return _operation(operator, (at,), self.node(tree.left), self.node(tree.right), span)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return self._negation(tree.operand, span)
        if self.is_algebra:
            return self._algebra(tree, span)
        raise UnreadableError(f"{self._text(span)!r} is not arithmetic")

    def _text(self, span: Span) -> str:
        return self.source[slice(*span)]

    def _number(self, digits: Span, span: Span) -> Number:
        text = self._text(digits)
        if not re.fullmatch(_DIGITS, text) or (self.is_algebra and len(text) > MAX_DIGITS):
            raise UnreadableError(f"{text!r} is not a number of at most {MAX_DIGITS} digits")
        return Number(span=span, value=Fraction(self._text(span)))

    def _negation(self, operand: ast.expr, span: Span) -> Node:
        start, end = operand.col_offset, operand.end_col_offset or 0
        # In algebra a power binds more tightly than a sign, so the sign stays a node of its own.
        if isinstance(operand, ast.Constant) and start == span[0] + 1 and not self.is_algebra:
            return self._number((start, end), span)
        inner = self.node(operand)
        value = None if inner.value is None else -inner.value
        return Negation(at=span[0], operand=inner, span=span, value=value)

    def _algebra(self, tree: ast.expr, span: Span) -> Node:
        match tree:
            case ast.Name():
                return Variable(name=tree.id, span=span)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.node(tree.operand)
            case ast.BinOp(op=ast.Pow()):
                exponent = self._exponent(tree.right)
                return Power(operand=self.node(tree.left), exponent=exponent, span=span)
            case ast.Call(func=ast.Name("sqrt"), args=[argument], keywords=[]):
                return Power(operand=self.node(argument), exponent=HALF, span=span)
        raise UnreadableError(f"{self._text(span)!r} is not algebra")

    def _exponent(self, tree: ast.expr) -> int:
        text = self._text((tree.col_offset, tree.end_col_offset or 0)).replace(" ", "")
        if not re.fullmatch("-?[0-9]{1,9}", text) or abs(int(text)) > MAX_EXPONENT:
            raise UnreadableError(f"the exponent {text!r} is not a small integer")
        return int(text)


def _operation(
    operator: str, at: tuple[int, ...], left: Node, right: Node, span: Span
) -> Operation:
    is_undefined = left.value is None or right.value is None
    is_undefined |= operator == DIVISION and right.value == 0
    return Operation(
        operator=operator,
        at=at,
        left=left,
        right=right,
        span=span,
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
        if match := pattern.fullmatch(question):
            numbers = {pattern.groupindex[name] for name in "ab"}
            words = [match.span(n) for n in range(1, pattern.groups + 1) if n not in numbers]
            at = tuple(place + 1 for start, end in words for place in range(start, end))
            spans = {name: (match.start(name) + 1, match.end(name) + 1) for name in "ab"}
            left, right = (Number(span=spans[x], value=Fraction(match[x])) for x in "ab")
            edges = (*left.span, *right.span)
            return _operation(operator, at, left, right, (min(edges), max(edges)))
    return None
