"""Confidence intervals and tests for numbers of correct answers.

Modules are fixed, not sampled from a larger set of modules; the uncertainty is that of the sampling
of questions.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
FEWEST = 10  # minimum number of questions for a bootstrap interval
Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]


def wilson(right: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of Wilson (1927) for an accuracy, from `right` of `n` answers.

    It lies within 0 and 1 and has a positive width even if all answers are correct. Without answers
    it is 0 to 1.
    """
    if not 0 <= right <= n:
        raise ValueError(f"{right} correct answers out of {n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # The exact limits are 0 and 1 here; rounding must not exclude the accuracy.
    low = 0.0 if right == 0 else (middle - reach) / scale
    high = 1.0 if right == n else (middle + reach) / scale
    return low, high


def average_interval(
    counts: Sequence[tuple[int, int]], confidence: float = CONFIDENCE
) -> tuple[float, Interval]:
    """Return the average accuracy over modules, each with (right, n), and its interval.

    Each limit is a quantile of a gamma distribution with three moments: the mean, the unbiased
    estimate of its variance, and twice its third cumulant, because the studentized mean is skewed
    twice as much as the mean, in the other direction (Johnson, 1978). If almost all answers are
    correct, or wrong, this alone is too narrow: a module without mistakes has an estimated variance
    of 0. Therefore one more answer is assumed, of the kind and in the module that changes the
    average most, as in the interval of Fay and Feuer (1997) for sums of Poisson counts. With few
    mistakes the limits are near Clopper and Pearson's; docs/evaluation.md has the coverage.
    """
    if not counts or any(n == 0 for _, n in counts):
        raise ValueError("an average needs at least one module, and answers in each module")
    right, n = np.array(counts, np.float64).T
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    mean = float((right / n).mean())
    low, high = 1 - _upper_limit(n - right, n, z), _upper_limit(right, n, z)
    # Rounding must not exclude the average.
    return mean, (min(mean, max(0.0, low)), max(mean, min(1.0, high)))


def _upper_limit(right: Floats, n: Floats, z: float) -> float:
    """Return the upper limit of the average accuracy."""
    share = right / n
    scatter = share * (1 - share)  # the variance of a single answer
    # The variance cannot be estimated from one answer; it is at most 1/4.
    variance = float(np.where(n > 1, scatter / np.maximum(n - 1, 1), 0.25).mean()) / len(n)
    third = 2 * float((scatter * (1 - 2 * share) / n**2).mean()) / len(n) ** 2
    shift = float(((1 - share) / n).max()) / len(n)  # by one more correct answer
    spread = math.sqrt(variance + shift**2)  # that answer adds an exponential distribution
    if spread == 0:
        return 1.0
    h = (third + 2 * shift**3) / (6 * spread**3)
    # The quantile of the gamma distribution by Wilson and Hilferty (1931), ((1 + h t)^3 - 1) / 3h
    # with t = z - h, expanded so that h may be 0. Its skewness 6 h is between -2 and 2.
    t = min(z - h, -1 / h) if h < 0 else z - h
    return float(share.mean()) + shift + spread * (t + h * t**2 + h**2 * t**3 / 3)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Discordant questions are those that exactly one of two models answers correctly. Under the null
    hypothesis, either model is equally likely to be the one.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if only_first == only_second:
        return 1.0
    # Logarithms, because binomial coefficients overflow for large n.
    logs = [math.lgamma(i + 1) + math.lgamma(n - i + 1) for i in range(fewer + 1)]
    tail = np.exp(math.lgamma(n + 1) - n * math.log(2) - np.array(logs)).sum()
    return min(1.0, 2 * float(tail))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The numbers of questions that both or only one of two models answer correctly."""

    n: int
    both: int
    only_first: int
    only_second: int

    @classmethod
    def of(cls, first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> "Agreement":
        """Count the verdicts of two models on the same questions."""
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
    """Return an interval for the difference of two averages over modules, on the same questions.

    The intervals of Newcombe for the modules are combined as Zou and Donner (2008) do for sums: the
    squared distances of their limits from the differences are summed. Unlike a bootstrap interval,
    it has a positive width even if the models agree on all questions.
    """
    limits = np.array([_newcombe(module, confidence) for module in modules])
    differences = np.array([module.difference for module in modules])
    below, above = np.sqrt(np.square(limits - differences[:, None]).sum(axis=0)) / len(modules)
    mean = float(differences.mean())
    return max(-1.0, mean - float(below)), min(1.0, mean + float(above))


def _newcombe(module: Agreement, confidence: float) -> Interval:
    """Return the interval of Newcombe (1998, method 10) for two paired accuracies.

    It combines the Wilson intervals of both; it is narrower if the verdicts are correlated.
    """
    first, second = module.both + module.only_first, module.both + module.only_second
    (low_1, high_1), (low_2, high_2) = (wilson(x, module.n, confidence) for x in (first, second))
    correlation = _correlation(module)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    below = reach(first / module.n - low_1, high_2 - second / module.n)
    above = reach(high_1 - first / module.n, second / module.n - low_2)
    return module.difference - below, module.difference + above


def _correlation(module: Agreement) -> float:
    """Return the correlation of the verdicts, with Newcombe's correction towards 0."""
    first, second = module.both + module.only_first, module.both + module.only_second
    neither = module.n - first - module.only_second
    scale = math.sqrt(first * (module.n - first)) * math.sqrt(second * (module.n - second))
    if scale == 0:
        return 0.0
    excess = module.both * neither - module.only_first * module.only_second
    return (max(0.0, excess - module.n / 2) if excess > 0 else excess) / scale


def difference_test(modules: Sequence[Agreement], *, draws: int = 100_000, seed: int = 0) -> float:
    """Return the two-sided p-value of a sign-flip test of the difference of two averages.

    Under the null hypothesis, the sign of each discordant question is random, as in McNemar's test;
    its weight is inversely proportional to the number of questions of its module. If all modules
    have the same size, this is McNemar's test of the sums; otherwise it is simulated.
    """
    if len({module.n for module in modules}) == 1:
        return mcnemar_exact(
            sum(module.only_first for module in modules),
            sum(module.only_second for module in modules),
        )
    flipped = [(module.only_first + module.only_second, 1 / module.n) for module in modules]
    return _sign_flips(sum(module.difference for module in modules), flipped, draws, seed)


def _sign_flips(
    observed: float, flipped: Iterable[tuple[int, float]], draws: int, seed: int
) -> float:
    """Return the share of sums with random signs that are as far from 0 as the observed sum.

    `flipped` has numbers of terms of equal size, and their sizes.
    """
    rng = np.random.default_rng(seed)
    simulated = np.zeros(draws)
    for count, size in flipped:
        simulated += size * (2 * rng.binomial(count, 0.5, draws) - count)
    as_far = np.abs(simulated) >= abs(observed) - 1e-12  # tolerance for rounding of equal sums
    return (1 + int(as_far.sum())) / (1 + draws)


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[Interval, float] | None:
    """The interval and the p-value of the difference of two means, by Welch's t-test.

    None if neither sample varies, or if scipy is not installed.
    """
    is_constant = len({*first}) == len({*second}) == 1
    return None if is_constant else _t_test("ttest_ind", first, second, equal_var=False)


def paired_t(first: Sequence[float], second: Sequence[float]) -> tuple[Interval, float] | None:
    """The interval and the p-value of the mean difference of pairs, by Student's t-test.

    None with fewer than two pairs, if all pairs differ by the same, or if scipy is not installed.
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if not differences or max(differences) - min(differences) < 1e-12:
        return None
    return _t_test("ttest_rel", first, second)


def _t_test(
    name: str, first: Sequence[float], second: Sequence[float], **options: bool
) -> tuple[Interval, float] | None:
    try:
        from scipy import stats
    except ImportError:
        return None
    result = getattr(stats, name)(first, second, **options)
    low, high = result.confidence_interval(CONFIDENCE)
    return (float(low), float(high)), float(result.pvalue)


def sign_flip_test(
    modules: Sequence[npt.NDArray[np.int64]], *, draws: int = 100_000, seed: int = 0
) -> float:
    """Return the two-sided p-value of a sign-flip test of the mean difference of two recipes.

    `modules` has, for each module, the difference of each question: by how many models of the first
    recipe more than of the second it is answered correctly. Under the null hypothesis the sign of
    each difference is random. The mean of a module weighs as much as that of any other. With one
    model of each this is `difference_test`, simulated.
    """
    flipped: list[tuple[int, float]] = []
    for differences in modules:
        sizes, counts = np.unique(np.abs(differences), return_counts=True)
        flipped += zip(counts.tolist(), (sizes / len(differences)).tolist(), strict=True)
    return _sign_flips(
        sum(float(differences.mean()) for differences in modules), flipped, draws, seed
    )


def resample(
    n: int,
    statistic: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    *,
    resamples: int = 2_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """Return a percentile bootstrap interval for a statistic of `n` questions.

    For fewer than FEWEST questions, for which such an interval is far too narrow, return None.

    The statistic takes the number of draws of each question, (resample, question), and returns its
    value for each resample. All positions of a question are thus drawn together.
    """
    if n < FEWEST:
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistic(_draws(n, resamples, seed)), [tail, 1 - tail])
    return float(low), float(high)


@lru_cache(maxsize=8)
def _draws(n: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the number of draws of each question: (resample, question)."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    counts.flags.writeable = False
    return counts


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by the method of Holm (1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
