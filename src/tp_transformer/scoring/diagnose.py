"""The kinds of wrong answers: equal in value, a sign, a digit, too short, or other.

A model's answer is arbitrary text, so it is never passed to anything that evaluates text:
`expressions.parse_answer` reads it, with bounds on length, exponents and nesting. Two trees are
compared numerically first, which separates nearly all unequal pairs at once; if the numbers agree,
sympy must prove equality, in a process that is ended if it takes too long.
"""

import cmath
import json
import os
import queue
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any, Self

from tp_transformer.scoring.expressions import (
    HALF,
    OPERATORS,
    Negation,
    Node,
    Number,
    Operation,
    UnreadableError,
    Variable,
    parse_answer,
)

KINDS = {
    "value": "equal in value, not in form",
    "sign": "a sign is wrong",
    "digit": "one digit is wrong",
    "short": "correct but incomplete",
    "tie": "the correct text, decided by rounding",
    "other": "anything else",
}

SECONDS = 2.0  # time limit of one proof
_SECONDS_TO_START = 60.0

# Arbitrary values of the variables for the numerical comparison.
_POINTS = ((0.7316, 1.2841), (1.6173, -0.4437), (-0.5129, 0.9376))
_CLOSE = 1e-8


def number_at(tree: Node, point: tuple[float, float]) -> complex:
    """Evaluate a tree in floating point, with variables set by a point."""
    if isinstance(tree, Number):
        return complex(float(tree.value))
    if isinstance(tree, Variable):
        return point[0] + point[1] * (ord(tree.name) - ord("a") + 1) / 7
    if isinstance(tree, Operation):
        left, right = number_at(tree.left, point), number_at(tree.right, point)
        return complex(OPERATORS[tree.operator](left, right))
    inner = number_at(tree.operand, point)
    if isinstance(tree, Negation):
        return 0 - inner  # not -inner, whose imaginary zero is on the other side of a branch cut
    return cmath.sqrt(inner) if tree.exponent == HALF else complex(inner ** int(tree.exponent))


def looks_equal(first: Node, second: Node) -> bool:
    """Whether two trees are numerically equal at all points."""
    for point in _POINTS:
        try:
            a, b = number_at(first, point), number_at(second, point)
            is_close = abs(a - b) <= _CLOSE * max(abs(a), abs(b), 1e-300)
        except (ArithmeticError, ValueError):
            return False
        if not is_close:
            return False
    return True


def prove_equal(first: Node, second: Node) -> bool:
    """Whether sympy can prove that two trees are equal, which may take long."""
    import sympy

    def build(tree: Node) -> Any:
        if isinstance(tree, Number):
            return sympy.Rational(tree.value)
        if isinstance(tree, Variable):
            return sympy.Symbol(tree.name)
        if isinstance(tree, Operation):
            return OPERATORS[tree.operator](build(tree.left), build(tree.right))
        inner = build(tree.operand)
        return -inner if isinstance(tree, Negation) else inner ** sympy.Rational(tree.exponent)

    difference = build(first) - build(second)
    return bool(sympy.expand(difference) == 0 or sympy.simplify(difference) == 0)


class _Prover:
    """A separate process in which sympy decides whether pairs of texts are equal."""

    def __init__(self) -> None:
        command = f"from {__name__} import serve; serve()"
        self._process = subprocess.Popen(  # noqa: S603  the command contains none of the texts
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # keeps Ctrl-C from sympy, which would print a traceback
        )
        if self._line(_SECONDS_TO_START) != "ready":
            self.end()
            raise RuntimeError("sympy did not start")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, first: str, second: str, seconds: float) -> bool | None:
        """Whether two texts are equal; None after a timeout, which ends the process."""
        assert self._process.stdin is not None  # noqa: S101  for the type checker
        try:
            self._process.stdin.write(json.dumps([first, second]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # the process has died
            return None
        return {"yes": True, "no": False}.get(self._line(seconds))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None  # noqa: S101
        timer = threading.Timer(seconds, self._stop)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()
            timer.join()  # if it has just fired, `has_ended` is up to date


def _receive(questions: "queue.SimpleQueue[str]") -> None:
    """Forward lines to the queue; exit at their end, even during a proof."""
    for line in sys.stdin:
        questions.put(line)
    os._exit(0)


def serve() -> None:
    """Read pairs of texts from standard input and print whether each is equal."""
    import sympy  # noqa: F401  imported before the first proof, whose time is limited

    questions: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(questions,), daemon=True).start()
    print("ready", flush=True)
    while True:
        first, second = json.loads(questions.get())
        try:
            proved = all(
                prove_equal(*pair)
                for pair in zip(parse_answer(first), parse_answer(second), strict=True)
            )
        except Exception:
            proved = False  # an error of sympy proves nothing
        print("yes" if proved else "no", flush=True)


class Diagnosis:
    """Classifies wrong answers; sympy is started when it is first needed.

    Without sympy, an answer that is equal in value gets another kind.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.has_sympy = find_spec("sympy") is not None
        self.n_out_of_time = 0
        self._prover: _Prover | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def kind(self, answer: str, predicted: str) -> str:
        """Return the first of `KINDS` that applies to a wrong answer.

        In a near-tie, decoding may give the correct text although the verdict in float64 is wrong.
        """
        if answer == predicted:
            return "tie"
        if self.is_equal(answer, predicted):
            return "value"
        if _without_signs(answer) == _without_signs(predicted):
            return "sign"
        if _is_one_digit_off(answer, predicted):
            return "digit"
        if answer.startswith(predicted):
            return "short"
        return "other"

    def is_equal(self, answer: str, predicted: str) -> bool:
        """Whether the parts of two texts are provably equal in value."""
        if not self.has_sympy:
            return False
        try:
            ours, theirs = parse_answer(answer), parse_answer(predicted)
        except UnreadableError:
            return False
        if len(ours) != len(theirs) or not all(map(looks_equal, ours, theirs)):
            return False
        return self._prove(answer, predicted)

    def _prove(self, answer: str, predicted: str) -> bool:
        if self._prover is not None and self._prover.has_ended:
            self._end()  # it timed out just after its last answer
        self._prover = self._prover or _Prover()
        proved = self._prover.ask(answer, predicted, self.seconds)
        if proved is None:
            self.n_out_of_time += 1
            self._end()
        return bool(proved)

    def _end(self) -> None:
        if self._prover is not None:
            self._prover.end()
            self._prover = None


def _without_signs(text: str) -> str:
    """Replace each minus by a plus, and remove leading signs of numbers and lists."""
    return re.sub(r"(^|[(,/*]\s*)(?:\+\s*)+", r"\1", text.replace("-", "+"))


def _is_one_digit_off(answer: str, predicted: str) -> bool:
    """Whether exactly one of two or more digits differs."""
    if len(answer) != len(predicted) or sum(map(str.isdigit, answer)) < 2:
        return False
    other = [(a, b) for a, b in zip(answer, predicted, strict=True) if a != b]
    return len(other) == 1 and other[0][0].isdigit() and other[0][1].isdigit()
