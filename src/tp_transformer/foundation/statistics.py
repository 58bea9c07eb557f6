"""How sure a score is, and whether two models differ.

Intervals and tests for counts of right answers. The modules are taken as given, not as drawn from
some larger set of modules: what is uncertain is which questions happened to be asked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
FEWEST = 10  # questions of which an interval can be drawn
Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]


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

    Each limit is a quantile of a gamma distribution with three moments: the mean, the unbiased
    estimate of its variance, and twice its third cumulant, because the studentized mean is skewed
    twice as much as the mean, in the other direction (Johnson, 1978). Where hardly any answer is
    wrong, or right, that alone is too narrow: a module without mistakes seems to have no variance.
    So one more answer is assumed, of the kind and in the module that moves the average most, as in
    the interval of Fay and Feuer (1997) for sums of Poisson counts. With few mistakes the limits
    are then near Clopper and Pearson's; docs/evaluation.md has the simulated coverage.
    """
    if not counts or any(n == 0 for _, n in counts):
        raise ValueError("an average needs modules, and each of them answers")
    right, n = np.array(counts, np.float64).T
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    mean = float((right / n).mean())
    low, high = 1 - _upper_limit(n - right, n, z), _upper_limit(right, n, z)
    # Rounding must not leave the average outside.
    return mean, (min(mean, max(0.0, low)), max(mean, min(1.0, high)))


def _upper_limit(right: Floats, n: Floats, z: float) -> float:
    """The upper limit of the average accuracy of modules."""
    share = right / n
    scatter = share * (1 - share)  # the variance of a single answer
    # One answer alone says nothing of its variance, which is 1/4 at most.
    variance = float(np.where(n > 1, scatter / np.maximum(n - 1, 1), 0.25).mean()) / len(n)
    third = 2 * float((scatter * (1 - 2 * share) / n**2).mean()) / len(n) ** 2
    shift = float(((1 - share) / n).max()) / len(n)  # by one more right answer
    spread = math.sqrt(variance + shift**2)  # that answer adds an exponential distribution
    if spread == 0:
        return 1.0
    h = (third + 2 * shift**3) / (6 * spread**3)
    # The quantile of the gamma distribution by Wilson and Hilferty (1931), ((1 + h t)^3 - 1) / 3h
    # with t = z - h, multiplied out so that h may be 0. Its skewness 6 h is between -2 and 2.
    t = min(z - h, -1 / h) if h < 0 else z - h
    return float(share.mean()) + shift + spread * (t + h * t**2 + h**2 * t**3 / 3)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """How likely a split of the discordant answers at least as uneven is, if the models are equal.

    Discordant are the questions that exactly one of two models answers: under equality each of
    them is a fair coin. Two-sided.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if only_first == only_second:
        return 1.0
    return min(1.0, 2 * binomial_at_least(n - fewer, n, 0.5))


def binomial_at_least(count: int, n: int, share: float) -> float:
    """How likely so many of `n` or more are, each of which happens with that probability."""
    if count <= 0:
        return 1.0
    # Logarithms, as the binomials of a hundred thousand overflow.
    i = np.arange(count, n + 1)
    logs = _log_factorial(n) - _log_factorial(i) - _log_factorial(n - i)
    logs = logs + i * math.log(share) + (n - i) * math.log1p(-share)
    top = logs.max()
    return min(1.0, float(np.exp(logs - top).sum()) * math.exp(top))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two models fare on the same questions."""

    n: int
    both: int  # questions that both answer
    only_first: int  # questions that only the first answers
    only_second: int

    @classmethod
    def of(cls, first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> "Agreement":
        """Count, for each question, who is right."""
        if len(first) != len(second):
            raise ValueError(f"{len(first)} verdicts of one model and {len(second)} of the other")
        return cls(
            n=len(first),
            both=int((first & second).sum()),
            only_first=int((first & ~second).sum()),
            only_second=int((second & ~first).sum()),
        )

    @property
    def difference(self) -> float:
        """The accuracy of the first minus that of the second."""
        return (self.only_first - self.only_second) / self.n


def difference_interval(modules: Sequence[Agreement], confidence: float = CONFIDENCE) -> Interval:
    """An interval for the difference of two averages over modules, on the same questions.

    Newcombe's of each module, put together as Zou and Donner (2008) do for sums: the squares of
    their distances from the differences add up. It has a width even where the models agree on every
    question, which resampling these questions would take for certainty.
    """
    limits = np.array([_newcombe(one, confidence) for one in modules])
    differences = np.array([one.difference for one in modules])
    below, above = np.sqrt(np.square(limits - differences[:, None]).sum(axis=0)) / len(modules)
    mean = float(differences.mean())
    return max(-1.0, mean - float(below)), min(1.0, mean + float(above))


def _newcombe(one: Agreement, confidence: float) -> Interval:
    """The interval of Newcombe (1998, method 10) for the difference of two paired accuracies.

    Of Wilson's intervals of both; the more alike the verdicts are, the narrower.
    """
    first, second = one.both + one.only_first, one.both + one.only_second
    (low_1, high_1), (low_2, high_2) = (wilson(x, one.n, confidence) for x in (first, second))
    likeness = _likeness(one)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * likeness * a * b + b * b))

    below = reach(first / one.n - low_1, high_2 - second / one.n)
    above = reach(high_1 - first / one.n, second / one.n - low_2)
    return one.difference - below, one.difference + above


def _likeness(one: Agreement) -> float:
    """The correlation of two models' verdicts, with Newcombe's correction towards 0."""
    first, second = one.both + one.only_first, one.both + one.only_second
    neither = one.n - first - one.only_second
    scale = math.sqrt(first * (one.n - first)) * math.sqrt(second * (one.n - second))
    if scale == 0:
        return 0.0
    excess = one.both * neither - one.only_first * one.only_second
    return (max(0.0, excess - one.n / 2) if excess > 0 else excess) / scale


def difference_test(modules: Sequence[Agreement], *, draws: int = 100_000, seed: int = 0) -> float:
    """How likely averages over modules at least as far apart are, if the models are equal.

    Under equality each discordant question is a fair coin, as in McNemar's test, and weighs as much
    as its module has few questions. All modules alike in size, only the sum of the coins matters,
    whose distribution is known; otherwise the coins are thrown, many times. Two-sided.
    """
    if len({one.n for one in modules}) == 1:
        return mcnemar_exact(
            sum(one.only_first for one in modules), sum(one.only_second for one in modules)
        )
    rng = np.random.default_rng(seed)
    thrown = np.zeros(draws)
    for one in modules:
        discordant = one.only_first + one.only_second
        thrown += (2 * rng.binomial(discordant, 0.5, draws) - discordant) / one.n
    observed = abs(sum(one.difference for one in modules))
    as_far = np.abs(thrown) >= observed - 1e-12  # sums of the same numbers may round apart
    return (1 + int(as_far.sum())) / (1 + draws)


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
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistic(_drawn(n, resamples, seed)), [tail, 1 - tail])
    return float(low), float(high)


@lru_cache(maxsize=8)
def _drawn(n: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each of `n` questions is drawn, (resample, question); the same for every head."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    drawn.flags.writeable = False
    return drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of many tests, Holm-adjusted (1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _log_factorial(numbers: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.array([math.lgamma(number + 1) for number in np.atleast_1d(numbers).tolist()])
