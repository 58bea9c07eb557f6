"""Write questions about nested quotients of four digits: all five trees, as v1.0 text.

    python experiments/quotients.py FOLDER
    tpt data prepare FOLDER --out quotients

A world in which structure is everything: the same four digits in the same order, and only the
parentheses say which of them multiply and which divide. A tenth of all quotients is kept for the
test, so that no test question occurs in training in any wording. It is small enough that tiny
models learn it on one core within the hour; docs/experiments.md has what became of them.
"""

import argparse
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np

DIGITS = range(2, 10)
WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")
WORDINGS_IN_TRAINING = 3  # of each quotient
MODULE = "arithmetic__mul_div_multiple"


def quotients(numbers: tuple[int, ...]) -> Iterator[tuple[str, Fraction]]:
    """Every way to divide these numbers in this order, as text and as a value."""
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0])
    for middle in range(1, len(numbers)):
        left, right = numbers[:middle], numbers[middle:]
        for (one, value), (other, divisor) in product(quotients(left), quotients(right)):
            yield f"{_nested(one)}/{_nested(other)}", value / divisor


def _nested(text: str) -> str:
    return f"({text})" if "/" in text else text


def questions() -> dict[str, list[tuple[str, Fraction]]]:
    """Training and test questions with their values, shuffled; the same at every call."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[str, Fraction]]] = {"train-easy": [], "interpolate": []}
    for numbers in product(DIGITS, repeat=4):
        for text, value in quotients(numbers):
            is_test = rng.random() < 0.1
            for wording in rng.permutation(WORDINGS)[: 1 if is_test else WORDINGS_IN_TRAINING]:
                rows["interpolate" if is_test else "train-easy"].append(
                    (str(wording.format(text)), value)
                )
    for own in rows.values():
        rng.shuffle(own)
    return rows


def main() -> None:
    """Write the training and the test questions."""
    parser = argparse.ArgumentParser(description="write questions about nested quotients")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for split, rows in questions().items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = [f"{question}\n{value}\n" for question, value in rows]
        (folder / split / f"{MODULE}.txt").write_text("".join(lines), "utf-8")
        print(f"{split}: {len(rows):,} questions")


if __name__ == "__main__":
    main()
