"""How sure a score is, and whether two models differ.

Intervals and tests for counts of right answers. The modules are taken as given, not as drawn from
some larger set of modules: what is uncertain is which questions happened to be asked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
FEWEST = 10  # questions of which an interval can be drawn
Interval = tuple[float, float]


def wilson(right: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """The interval of Wilson (1927) for the accuracy behind `right` out of `n` answers.

    It stays within 0 and 1 and has a width even where all answers are right. With no answers
    nothing is known: 0 to 1.
    """
    if not 0 <= right <= n:
        raise ValueError(f"{right} right answers out of {n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At the ends the exact values are 0 and 1; rounding must not leave the accuracy outside.
    low = 0.0 if right == 0 else (middle - reach) / scale
    high = 1.0 if right == n else (middle + reach) / scale
    return low, high


def average_interval(
    counts: Sequence[tuple[int, int]], confidence: float = CONFIDENCE
) -> tuple[float, Interval]:
    """The accuracy averaged over modules with (right, n) each, and its interval.

    The modules' own intervals are put together as Zou and Donner (2008) do for sums: the squares
    of their reaches add up. A module with all answers right so adds to the doubt, too.
    """
    if not counts or any(n == 0 for _, n in counts):
        raise ValueError("an average needs modules, and each of them answers")
    shares = np.array([right / n for right, n in counts])
    limits = np.array([wilson(right, n, confidence) for right, n in counts])
    below, above = np.sqrt(np.square(limits - shares[:, None]).sum(axis=0)) / len(counts)
    mean = float(shares.mean())
    return mean, (max(0.0, mean - float(below)), min(1.0, mean + float(above)))


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """How likely a split of the discordant answers at least as uneven is, if the models are equal.

    Discordant are the questions that exactly one of two models answers: under equality each of
    them is a fair coin. Two-sided.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if only_first == only_second:
        return 1.0
    # Logarithms, as the binomials of a hundred thousand discordant answers overflow.
    i = np.arange(fewer + 1)
    logs = _log_factorial(n) - _log_factorial(i) - _log_factorial(n - i) - n * math.log(2)
    top = logs.max()
    return min(1.0, 2 * float(np.exp(logs - top).sum()) * math.exp(top))


def mcnemar_chi_square(only_first: int, only_second: int) -> float:
    """McNemar's test (1947) by the chi-square distribution, with Edwards' continuity correction."""
    n = only_first + only_second
    if n == 0:
        return 1.0
    statistic = max(0, abs(only_first - only_second) - 1) ** 2 / n
    return math.erfc(math.sqrt(statistic / 2))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two models fare on the same questions."""

    n: int
    only_first: int  # questions that only the first answers
    only_second: int

    @classmethod
    def of(cls, first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> "Agreement":
        """Count, for each question, who is right."""
        if len(first) != len(second):
            raise ValueError(f"{len(first)} verdicts of one model and {len(second)} of the other")
        return cls(
            n=len(first),
            only_first=int((first & ~second).sum()),
            only_second=int((second & ~first).sum()),
        )

    @property
    def difference(self) -> float:
        """The accuracy of the first minus that of the second."""
        return (self.only_first - self.only_second) / self.n


def bootstrap(
    modules: Sequence[Agreement],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval:
    """An interval for the difference of two averages over modules, by resampling the questions.

    Questions are drawn anew within each module, both models' verdicts with them. All that matters
    of a draw is how many questions only the first and only the second answers, so these are drawn,
    from a multinomial distribution: the same, at any number of questions, in no time.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for one in modules:
        shares = np.array([one.only_first, one.only_second, one.n - one.only_first])
        shares[2] -= one.only_second
        drawn = rng.multinomial(one.n, shares / one.n, size=resamples)
        total += (drawn[:, 0] - drawn[:, 1]) / one.n
    tail = (1 - confidence) / 2
    low, high = np.quantile(total / len(modules), [tail, 1 - tail])
    return float(low), float(high)


def resample(
    n: int,
    statistic: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    *,
    resamples: int = 2_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """An interval for a statistic of `n` questions, by drawing them anew.

    None for fewer than FEWEST questions: what so few happen to have in common is drawn every time,
    and the interval is far too narrow.

    The statistic gets how often each question was drawn, (resample, question), and gives its value
    for each resample. What belongs to a question, such as its positions, so stays together.
    """
    if n < FEWEST:
        return None
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistic(drawn), [tail, 1 - tail])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of many tests, each raised for their number (Holm, 1979)."""
    raised = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        raised[place] = largest
    return raised


def _log_factorial(numbers: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.array([math.lgamma(number + 1) for number in np.atleast_1d(numbers).tolist()])
