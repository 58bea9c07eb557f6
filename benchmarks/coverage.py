"""How often the interval of an average over modules holds the true average, by simulation.

    python benchmarks/coverage.py [--draws 4000]

Prints the table of docs/evaluation.md. Each cell draws the right answers of every module from
binomial distributions, many times, and counts the intervals that hold the true average; its random
numbers depend on no other cell. Averages near 0% are those near 100% with right and wrong
exchanged, which the interval treats alike.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tp_transformer.foundation.statistics import average_interval

ACCURACIES = (0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
QUESTIONS = (50, 100, 500, 1000, 10_000)  # of each module
MODULES = (15, 56)  # as many as the extrapolation and the interpolation splits have
SHAPES = ("equal", "spread")
DRAWS = 4000


def accuracies(shape: str, n_modules: int, average: float) -> npt.NDArray[np.float64]:
    """The true accuracies of the modules: all equal, or spread over as far as they can be.

    Spread means that the error rates rise in equal steps from 0 to twice their average.
    """
    if shape == "equal":
        return np.full(n_modules, average)
    return 1 - 2 * (1 - average) * (np.arange(n_modules) + 0.5) / n_modules


def coverage(shape: str, n_modules: int, average: float, n: int, draws: int = DRAWS) -> float:
    """The share of draws whose interval holds the true average."""
    rng = np.random.default_rng([SHAPES.index(shape), n_modules, round(average * 10_000), n])
    right = rng.binomial(n, accuracies(shape, n_modules, average), size=(draws, n_modules))
    intervals = (average_interval([(count, n) for count in one])[1] for one in right.tolist())
    return sum(low <= average <= high for low, high in intervals) / draws


def table(draws: int) -> Iterator[str]:
    """Lines of Markdown: a row for each true average, a column for each number of questions."""
    heads = " | ".join(f"{n:,} questions" for n in QUESTIONS)
    yield f"| modules | accuracies | average | {heads} |"
    yield "|---:|---|---:|" + "---:|" * len(QUESTIONS)
    for n_modules in MODULES:
        for shape in SHAPES:
            for average in ACCURACIES:
                cells = [f"{coverage(shape, n_modules, average, n, draws):.1%}" for n in QUESTIONS]
                start = f"| {n_modules} | {shape} | {100 * average:g}% |"
                yield f"{start} {' | '.join(cells)} |"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args()
    for line in table(options.draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
