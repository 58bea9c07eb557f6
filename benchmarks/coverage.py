"""Coverage of the interval of an average over modules, by simulation.

    python benchmarks/coverage.py [--draws 4000]

Prints the table of docs/evaluation.md. For each cell, the numbers of correct answers of all modules
are drawn from binomial distributions many times, and the intervals that contain the true average
are counted; cells have independent random numbers. Averages near 0% are not simulated, because the
interval is symmetric in correct and wrong answers.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tp_transformer.scoring.statistics import average_interval

ACCURACIES = (0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
QUESTIONS = (50, 100, 500, 1000, 10_000)  # of each module
MODULES = (15, 56)  # the numbers of modules of the extrapolation and interpolation splits
SHAPES = ("equal", "spread")
DRAWS = 4000


def accuracies(shape: str, n_modules: int, average: float) -> npt.NDArray[np.float64]:
    """Return the true accuracies of the modules: all equal, or spread as far as possible.

    Spread means that error rates increase in equal steps from 0 to twice their average.
    """
    if shape == "equal":
        return np.full(n_modules, average)
    return 1 - 2 * (1 - average) * (np.arange(n_modules) + 0.5) / n_modules


def coverage(shape: str, n_modules: int, average: float, n: int, draws: int = DRAWS) -> float:
    """Return the share of draws whose interval contains the true average."""
    rng = np.random.default_rng([SHAPES.index(shape), n_modules, round(average * 10_000), n])
    right = rng.binomial(n, accuracies(shape, n_modules, average), size=(draws, n_modules))
    intervals = (average_interval([(count, n) for count in one])[1] for one in right.tolist())
    return sum(low <= average <= high for low, high in intervals) / draws


def table(draws: int) -> Iterator[str]:
    """Yield lines of Markdown: a row for each average, a column for each number of questions."""
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
    """Simulate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args()
    for line in table(options.draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
