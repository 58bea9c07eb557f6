"""The computed order: a bijection, and one that looks random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.sampling import key_of, permute


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63))
def test_is_a_bijection(n, seed):
    assert sorted(permute(np.arange(n), n, key_of(seed))) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 65_536, 65_537])
def test_is_a_bijection_at_the_edges_of_powers_of_two(n):
    assert np.array_equal(np.sort(permute(np.arange(n), n, 7)), np.arange(n))


def test_reaches_every_part_of_a_large_range_without_collisions():
    n = 112_000_000
    found = permute(np.arange(200_000), n, key_of(3))
    assert len(np.unique(found)) == 200_000
    assert found.min() >= 0
    assert found.max() < n
    counts = np.histogram(found, bins=100, range=(0, n))[0]
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert 50 < chi_squared < 170  # 99 degrees of freedom: 1 in 100,000 lies outside


@pytest.mark.parametrize("n", [10, 1000])
def test_neighbours_do_not_stay_together_and_nothing_favours_its_place(n):
    first = permute(np.zeros(4000, int), n, key_of(np.arange(4000)))
    second = permute(np.ones(4000, int), n, key_of(np.arange(4000)))
    for found in (first, second, (second - first) % n):
        counts = np.histogram(found, bins=10, range=(0, n))[0]
        expected = np.full(10, 400.0)
        if found is not first and found is not second and n == 10:
            expected = np.array([0.0, *[4000 / 9] * 9])  # two places are never the same
        seen = expected > 0
        assert counts[~seen].sum() == 0
        chi_squared = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
        assert chi_squared < 35  # 9 degrees of freedom: 1 in 20,000 lies above


def test_sizes_and_keys_may_differ_by_row():
    sizes, keys = np.array([5, 9, 1, 1000]), np.array([1, 2, 3, 4], np.uint64)
    together = permute(np.array([4, 4, 0, 999]), sizes, keys)
    alone = [permute(i, n, k) for i, n, k in zip([4, 4, 0, 999], sizes, keys, strict=True)]
    assert together.tolist() == [int(one[0]) for one in alone]


def test_keys_depend_on_every_number_and_the_order():
    choices = [(1, 2), (2, 1), (1, 3), (1,), (1, 2, 0), (0, 1, 2)]
    keys = {int(key_of(*numbers)[0]) for numbers in choices}
    assert len(keys) == 6
    assert np.array_equal(key_of(5, np.arange(3)), [key_of(5, i)[0] for i in range(3)])


def test_the_order_is_fixed_for_all_time():
    """A resumed run depends on these numbers: they must not change between versions."""
    assert permute(np.arange(8), 8, key_of(0, 0)).tolist() == [7, 1, 5, 0, 6, 2, 3, 4]
    assert permute(np.arange(3), 112_000_000, key_of(1, 2)).tolist() == [
        22921224,
        15361164,
        70846234,
    ]


@pytest.mark.parametrize(("index", "n"), [(5, 5), (0, 0)])
def test_refuses_an_index_out_of_range(index, n):
    with pytest.raises(ValueError, match="must be below"):
        permute(index, n, 1)
