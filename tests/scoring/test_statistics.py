"""Intervals and tests, against closed forms, brute force and simulation."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.scoring.statistics import (
    Agreement,
    average_interval,
    bootstrap,
    holm,
    mcnemar_chi_square,
    mcnemar_exact,
    resample,
    wilson,
)

Z = 1.959963984540054  # the normal distribution's 97.5% quantile, from a table

counts = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_wilsons_limits_solve_the_equation_that_defines_them(count):
    """At a limit p, the observed share is exactly z standard errors of p away."""
    right, n = count
    low, high = wilson(right, n)
    assert 0 <= low <= right / n <= high <= 1
    for limit in {low, high} - {0.0, 1.0}:
        assert abs(right / n - limit) == pytest.approx(Z * math.sqrt(limit * (1 - limit) / n))
    assert (low == 0) == (right == 0)
    assert (high == 1) == (right == n)


def test_wilsons_interval_of_a_textbook_example():
    # Newcombe (1998), table I: 81 of 263.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="5 right answers out of 4"):
        wilson(5, 4)


def test_the_average_of_one_module_is_that_module():
    mean, interval = average_interval([(30, 40)])
    assert mean == 0.75
    assert interval == pytest.approx(wilson(30, 40))


def test_the_averages_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth = np.array([0.02, 0.4, 0.7, 0.97, 1.0, 0.9])
    sizes = np.array([50, 100, 200, 50, 100, 40])
    covered = 0
    for _ in range(1000):
        drawn = rng.binomial(sizes, truth)
        _, (low, high) = average_interval(list(zip(drawn.tolist(), sizes.tolist(), strict=True)))
        covered += low <= truth.mean() <= high
    assert 0.93 < covered / 1000 < 0.985


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (1, 8), (9, 2), (0, 12), (7, 6)])
def test_the_exact_test_counts_all_outcomes_of_the_coins(first, second):
    """Every way that the coins can fall is tried, and those at least as uneven counted."""
    n = first + second
    falls = [sum(fall) for fall in product((0, 1), repeat=n)]
    uneven = sum(abs(2 * heads - n) >= abs(first - second) for heads in falls)
    assert mcnemar_exact(first, second) == pytest.approx(uneven / 2**n)


def test_the_exact_test_holds_for_many_questions():
    """Against Python's integers, which do not round; and where those would take for ever."""
    tail = sum(math.comb(3000, i) for i in range(1401))
    # Of whole numbers, so that nothing underflows.
    expected = 2 * (tail * 10**18 // 2**3000) / 10**18
    assert mcnemar_exact(1400, 1600) == pytest.approx(expected, rel=1e-6)
    assert mcnemar_exact(150_000, 150_400) == pytest.approx(
        mcnemar_chi_square(150_000, 150_400), rel=1e-2
    )


def test_the_chi_square_test_is_that_of_the_distribution():
    """By integrating the density of the squared normal distribution."""
    # Edwards' statistic of 5 and 15 is (10 - 1)² / 20.
    root = math.sqrt(81 / 20)
    x = np.linspace(root, 12, 200_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    assert mcnemar_chi_square(5, 15) == pytest.approx(2 * np.trapezoid(density, x), rel=1e-6)
    assert mcnemar_chi_square(0, 0) == mcnemar_chi_square(4, 4) == 1
    assert mcnemar_exact(400, 500) == pytest.approx(mcnemar_chi_square(400, 500), rel=0.02)


def test_agreement_counts_who_is_right():
    first = np.array([True, True, False, False, True])
    second = np.array([True, False, True, False, False])
    found = Agreement.of(first, second)
    assert (found.n, found.only_first, found.only_second) == (5, 2, 1)
    assert found.difference == pytest.approx(first.mean() - second.mean())
    with pytest.raises(ValueError, match="5 verdicts of one model and 4"):
        Agreement.of(first, second[1:])


def test_the_bootstrap_is_that_of_the_questions_themselves():
    """Drawing questions with replacement, both verdicts together, has the same distribution."""
    rng = np.random.default_rng(1)
    modules = [
        (rng.random(n) < p, rng.random(n) < q) for n, p, q in ((80, 0.7, 0.5), (40, 0.9, 0.9))
    ]
    total = np.zeros(20_000)
    for first, second in modules:
        drawn = rng.integers(len(first), size=(20_000, len(first)))
        total += (first[drawn].mean(axis=1) - second[drawn].mean(axis=1)) / len(modules)
    expected = np.quantile(total, [0.025, 0.975])
    found = bootstrap([Agreement.of(*one) for one in modules], resamples=20_000)
    assert found == pytest.approx(expected, abs=0.01)
    assert bootstrap([Agreement.of(*modules[0])]) == bootstrap([Agreement.of(*modules[0])])
    same = Agreement(n=50, only_first=0, only_second=0)
    assert bootstrap([same]) == (0, 0)


def test_holm_raises_p_values_as_in_his_paper():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_resampled_questions_give_the_interval_of_their_mean():
    values = np.random.default_rng(0).standard_normal(400) * 3 + 5
    low, high = resample(400, lambda counts: counts @ values / 400, resamples=4000)
    reach = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - reach, abs=0.03)
    assert high == pytest.approx(values.mean() + reach, abs=0.03)


def test_a_few_questions_have_no_interval():
    for n, has_interval in ((1, False), (9, False), (10, True)):
        found = resample(n, lambda counts, n=n: counts @ np.arange(n) / n)
        assert (found is not None) == has_interval
