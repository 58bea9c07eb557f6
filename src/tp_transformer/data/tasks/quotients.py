"""Nested quotients of digits: the digits and their order are the same, only the structure differs.

The parentheses alone determine which digits multiply and which divide, as in (7/(7/8))/2 and
(7/7)/(8/2). The questions have the wordings and the characters of the Mathematics Dataset, so the
analyses of its arithmetic apply to them.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import TASKS, TRAIN, Row, Task
from tp_transformer.ranges import Seed

TEST = "test"
_MODULE = "quotients"
_DIGITS = range(2, 10)
_N_DIGITS = 4
_WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")
_WORDINGS_IN_TRAINING = 3  # of each quotient
_TEST_SHARE = 0.1


@TASKS.register("quotients")
def quotients(*, seed: Seed = 0) -> Task:
    """Evaluate nested quotients of four digits, such as (7/(7/8))/2.

    Args:
        seed: seed of the choice of test questions and of the wordings
    """
    return Task(
        name="quotients",
        vocabulary=MATHEMATICS.vocabulary,
        splits={TRAIN: (_MODULE,), TEST: (_MODULE,)},
        rows=lambda: _rows(seed),
    )


def _rows(seed: int) -> Iterator[Row]:
    """Yield the questions in random order; a quotient is in training or in the test, never both."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[tuple[str, str]]] = {TRAIN: [], TEST: []}
    for digits in product(_DIGITS, repeat=_N_DIGITS):
        for text, value in nested_quotients(digits):
            is_test = rng.random() < _TEST_SHARE
            wordings = rng.permutation(_WORDINGS)[: 1 if is_test else _WORDINGS_IN_TRAINING]
            rows[TEST if is_test else TRAIN] += [
                (str(wording.format(text)), str(value)) for wording in wordings
            ]
    for split, of_split in rows.items():
        rng.shuffle(of_split)
        for question, answer in of_split:
            yield Row(split, _MODULE, question, answer)


def nested_quotients(numbers: tuple[int, ...]) -> Iterator[tuple[str, Fraction]]:
    """Yield each way to divide the numbers in their order, as text and as a value."""
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0])
    for middle in range(1, len(numbers)):
        left, right = (nested_quotients(part) for part in (numbers[:middle], numbers[middle:]))
        for (dividend, value), (divisor, divisor_value) in product(left, right):
            yield f"{_nested(dividend)}/{_nested(divisor)}", value / divisor_value


def _nested(text: str) -> str:
    return f"({text})" if "/" in text else text
