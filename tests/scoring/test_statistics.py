"""Intervals and tests, against closed forms, brute force and simulation."""

import math
import re
from importlib import util
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import beta

from documents import ROOT
from tp_transformer.scoring.statistics import (
    Agreement,
    average_interval,
    difference_interval,
    difference_test,
    holm,
    mcnemar_exact,
    paired_t,
    resample,
    sign_flip_test,
    wilson,
)

Z = 1.959963984540054  # the normal distribution's 97.5% quantile, from a table

spec = util.spec_from_file_location("coverage", ROOT / "benchmarks" / "coverage.py")
simulation = util.module_from_spec(spec)
spec.loader.exec_module(simulation)
COVERAGE_CELLS = [
    ("equal", 15, 0.995, 50),
    ("equal", 56, 0.99, 100),
    ("spread", 15, 0.999, 100),
    ("spread", 56, 0.9999, 1000),
    ("equal", 56, 0.9999, 10_000),
]

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


@given(st.lists(counts, min_size=1, max_size=20))
def test_the_averages_interval_holds_it_and_has_a_width_and_two_sides(modules):
    mean, (low, high) = average_interval(modules)
    assert mean == pytest.approx(np.mean([right / n for right, n in modules]))
    assert 0 <= low <= mean <= high <= 1
    assert low < high
    back = average_interval([(n - right, n) for right, n in modules])[1]
    assert back == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("n", [20, 100, 1000])
def test_the_averages_interval_of_one_module_is_near_the_exact_one(n):
    for right in {0, 1, n // 20, n // 4, n // 2, n - 1, n}:
        exact = (
            beta.ppf(0.025, right, n - right + 1) if right else 0.0,
            beta.ppf(0.975, right + 1, n - right) if right < n else 1.0,
        )
        _, interval = average_interval([(right, n)])
        assert interval == pytest.approx(exact, abs=0.12 * (exact[1] - exact[0]))


@pytest.mark.parametrize("n_modules", [1, 15, 56])
def test_without_mistakes_the_averages_interval_is_that_of_all_questions_together(n_modules):
    """As many mistakes as leave 2.5% for none at all, wherever in the modules they are."""
    mean, (low, high) = average_interval([(200, 200)] * n_modules)
    assert mean == high == 1
    assert 1 - low == pytest.approx(-math.log(0.025) / (200 * n_modules), rel=0.01)


def test_the_documents_table_of_coverage_is_what_the_script_prints():
    text = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| (15|56) \|", line)]
    shown = {}
    for n_modules, shape, average, *cells in rows:
        key = (shape.strip(), int(n_modules), round(float(average.strip(" %")) / 100, 6))
        shown |= {
            (*key, n): float(x.strip(" %"))
            for n, x in zip(simulation.QUESTIONS, cells, strict=True)
        }
    sizes = (simulation.SHAPES, simulation.MODULES, simulation.ACCURACIES, simulation.QUESTIONS)
    assert shown.keys() == set(product(*sizes))
    assert min(shown.values()) >= 94
    for cell in COVERAGE_CELLS[:2]:
        # Another version of numpy may draw other numbers.
        assert shown[cell] == pytest.approx(100 * simulation.coverage(*cell), abs=1.5)


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
    # McNemar's own (1947), by the normal distribution, with Edwards' continuity correction.
    for first, second, near in ((150_000, 150_400, 0.01), (400, 500, 0.02)):
        root = (abs(first - second) - 1) / math.sqrt(first + second)
        normal = math.erfc(root / math.sqrt(2))
        assert mcnemar_exact(first, second) == pytest.approx(normal, rel=near)


def test_agreement_counts_who_is_right():
    first = np.array([True, True, False, False, True])
    second = np.array([True, False, True, False, False])
    found = Agreement.of(first, second)
    assert (found.n, found.both, found.only_first, found.only_second) == (5, 1, 2, 1)
    assert found.difference == pytest.approx(first.mean() - second.mean())
    with pytest.raises(ValueError, match="5 verdicts of one model and 4"):
        Agreement.of(first, second[1:])


def agreement(both, only_first, only_second, neither):
    n = both + only_first + only_second + neither
    return Agreement(n=n, both=both, only_first=only_first, only_second=only_second)


def flipped(one):
    return Agreement(n=one.n, both=one.both, only_first=one.only_second, only_second=one.only_first)


tables = st.tuples(*[st.integers(0, 30)] * 4).filter(any).map(lambda table: agreement(*table))


@given(st.lists(tables, min_size=1, max_size=4))
def test_the_differences_interval_holds_it_and_has_a_width_and_two_sides(modules):
    difference = np.mean([one.difference for one in modules])
    low, high = difference_interval(modules)
    assert -1 <= low <= difference <= high <= 1
    assert low < high
    back = difference_interval([flipped(one) for one in modules])
    assert back == pytest.approx((-high, -low))


def test_the_differences_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    # both, only the first, only the second, neither
    truth = np.array(
        [
            [0.9, 0.02, 0.01, 0.07],
            [0.3, 0.2, 0.1, 0.4],
            [0.97, 0.03, 0.0, 0.0],
            [0.5, 0.0, 0.1, 0.4],
        ]
    )
    sizes = (40, 100, 60, 50)
    difference = (truth[:, 1] - truth[:, 2]).mean()
    covered = 0
    for _ in range(1000):
        drawn = [rng.multinomial(n, shares) for n, shares in zip(sizes, truth, strict=True)]
        low, high = difference_interval([agreement(*table.tolist()) for table in drawn])
        covered += low <= difference <= high
    assert 0.93 < covered / 1000 < 0.99


def test_the_test_of_the_averaged_difference_counts_all_outcomes_of_the_coins():
    """Modules of unequal sizes: a question weighs as much as its module has few of them."""
    modules = [agreement(50, 5, 1, 44), agreement(3, 0, 4, 3)]
    observed = abs(sum(one.difference for one in modules))
    totals = [
        abs((2 * one - 6) / 100 + (2 * other - 4) / 10)
        for one, other in product(range(7), range(5))
        for _ in range(math.comb(6, one) * math.comb(4, other))
    ]
    expected = np.mean([total >= observed - 1e-12 for total in totals])
    assert difference_test(modules) == pytest.approx(expected, abs=0.005)
    assert difference_test(modules) == difference_test([flipped(one) for one in modules])


def test_the_test_belongs_to_the_average_and_not_to_the_sum():
    """The first answers more questions, and is worse on average over modules."""
    modules = [agreement(9_000, 60, 10, 930), agreement(10, 0, 5, 5)]
    assert mcnemar_exact(60, 15) < 1e-6
    assert difference_test(modules) == pytest.approx(2 / 2**5, abs=0.005)


def test_of_modules_alike_in_size_the_test_is_exact():
    modules = [agreement(50, 9, 1, 40), agreement(80, 8, 3, 9)]
    assert difference_test(modules) == mcnemar_exact(17, 4)
    assert difference_test([agreement(3, 0, 0, 4), agreement(5, 0, 0, 0)]) == 1


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


def test_pairs_are_tested_as_by_one_sample_of_differences():
    first, second = [0.9, 0.95, 0.7], [0.8, 0.7, 0.65]
    interval, p = paired_t(first, second)
    differences = np.subtract(first, second)
    expected = stats.ttest_1samp(differences, 0)
    assert p == pytest.approx(expected.pvalue)
    t = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / 3**0.5
    assert interval == pytest.approx((differences.mean() - t, differences.mean() + t))
    assert paired_t([0.5], [0.4]) is None
    assert paired_t([0.5, 0.6], [0.4, 0.5]) is None


def test_sign_flips_against_all_flips():
    modules = [np.array([3, -1, 2, 0]), np.array([1, 1, -2, 3, 1, 0])]
    weighted = np.concatenate([module / len(module) for module in modules])
    signs = np.array(list(product((-1, 1), repeat=len(weighted))))
    exact = (np.abs(signs @ weighted) >= abs(weighted.sum()) - 1e-12).mean()
    assert sign_flip_test(modules) == pytest.approx(exact, abs=0.01)
