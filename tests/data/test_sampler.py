"""The sampler: every row once per epoch, whatever the ranks, and mixtures in their proportions."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.sampler import BLOCK, Sampler
from tp_transformer.foundation.errors import SettingsError


@dataclass(frozen=True)
class Range:
    module: str
    start: int
    count: int


RANGES = [Range("a", 0, 10), Range("b", 10, 25), Range("c", 35, 0), Range("a", 35, 7)]  # 42 rows
MODULE = ["a"] * 10 + ["b"] * 25 + ["a"] * 7


def sequence(sampler, steps, n_ranks=1):
    """All rows of some steps, put together from those of the ranks."""
    found = []
    for step in steps:
        batch = np.empty(sampler.batch_size, int)
        for rank in range(n_ranks):
            batch[rank::n_ranks] = sampler.rows(step, rank, n_ranks)
        found += batch.tolist()
    return found


@given(st.integers(1, 50), st.integers(0, 2**62))
def test_every_row_comes_once_per_epoch(batch_size, seed):
    sampler = Sampler(RANGES, batch_size=batch_size, seed=seed)
    rows = sequence(sampler, range(2 * 42 // batch_size + 1))
    assert sorted(rows[:42]) == sorted(rows[42:84]) == list(range(42))


@given(st.integers(1, 50), st.integers(1, 7))
def test_ranks_and_resuming_do_not_change_the_sequence(batch_size, n_ranks):
    sampler = Sampler(RANGES, batch_size=batch_size, seed=3)
    expected = sequence(sampler, range(5))
    resumed = Sampler(RANGES, batch_size=batch_size, seed=3)
    assert sequence(sampler, range(3), n_ranks) + sequence(resumed, range(3, 5)) == expected


def test_the_batch_size_does_not_change_the_sequence():
    in_ones = sequence(Sampler(RANGES, batch_size=1, seed=3), range(84))
    assert sequence(Sampler(RANGES, batch_size=12, seed=3), range(7)) == in_ones


def test_epochs_and_seeds_have_orders_of_their_own():
    rows = sequence(Sampler(RANGES, batch_size=42, seed=0), range(2))
    others = sequence(Sampler(RANGES, batch_size=42, seed=1), range(1))
    assert rows[:42] != rows[42:] != others
    assert rows[:42] != others
    assert rows[:42] != list(range(42))


def test_a_subset_of_modules_leaves_the_others_out():
    subset = [one for one in RANGES if one.module == "a"]
    rows = sequence(Sampler(subset, batch_size=17, seed=0), range(1))
    assert sorted(rows) == [*range(10), *range(35, 42)]


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_must_be_one_of_them(rank):
    with pytest.raises(ValueError, match="is not one of 3"):
        Sampler(RANGES, batch_size=4, seed=0).rows(0, rank, 3)


def test_the_epoch_counts_samples():
    sampler = Sampler(RANGES, batch_size=21, seed=0)
    assert len(sampler) == 42
    assert sampler.epoch(3) == 1.5


def test_modules_without_a_share_do_not_count():
    ranges = [Range("a", 0, 30), Range("b", 30, 70), Range("a", 100, 10)]
    weights = {"a": 1.0, "b": 0.0}
    sampler = Sampler(ranges, batch_size=20, seed=0, weights=weights)
    assert len(sampler) == 40
    assert sampler.epoch(3) == 1.5


def test_a_mixture_keeps_its_proportions_and_repeats_nothing_early():
    sampler = Sampler(RANGES, batch_size=BLOCK // 16, seed=5, weights={"a": 1.0, "b": 3.0})
    rows = sequence(sampler, range(16))
    counts = Counter(MODULE[row] for row in rows)
    assert counts == {"a": BLOCK // 4, "b": 3 * BLOCK // 4}
    for module, size in (("a", 17), ("b", 25)):
        own = [row for row in rows if MODULE[row] == module]
        times = Counter(own).values()
        assert max(times) - min(times) <= 1
        assert len(set(own)) == size
    a_share = [np.mean([MODULE[row] == "a" for row in rows[i : i + 1024]]) for i in (0, 1024, 2048)]
    assert np.allclose(a_share, 0.25, atol=0.05)


def mixture(batch_size):
    ranges = [Range("a", 0, 100), Range("b", 100, 1000)]
    return Sampler(ranges, batch_size=batch_size, seed=5, weights={"a": 1.0, "b": 1.5})


def test_in_a_mixture_each_row_comes_once_before_any_comes_again():
    rows = sequence(mixture(1000), range(9))
    for start, size in ((0, 100), (100, 1000)):
        own = [row for row in rows if start <= row < start + size]
        assert len(own) > 3 * size
        for epoch in range(3):
            taken = own[epoch * size : (epoch + 1) * size]
            assert sorted(taken) == list(range(start, start + size))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_batch_size_does_not_change_the_sequence_of_a_mixture(batch_size):
    rows = sequence(mixture(1000), range(9))
    assert len(rows) > 2 * BLOCK
    for middle in (200, BLOCK, 2 * BLOCK):  # most batches lie within a block, some over its end
        steps = range(middle // batch_size - 20, middle // batch_size + 20)
        first, last = steps[0] * batch_size, (steps[-1] + 1) * batch_size
        assert sequence(mixture(batch_size), steps) == rows[first:last]


def test_a_mixture_goes_on_from_block_to_block_and_over_ranks():
    sampler = Sampler(RANGES, batch_size=BLOCK // 2, seed=5, weights={"a": 1.0, "b": 2.0})
    rows = sequence(sampler, range(6))
    assert sequence(sampler, range(6), n_ranks=3) == rows
    for module, size in (("a", 17), ("b", 25)):
        times = Counter(row for row in rows if MODULE[row] == module).values()
        assert len(times) == size
        assert max(times) - min(times) <= 1


def test_a_weight_of_zero_leaves_a_module_out():
    sampler = Sampler(RANGES, batch_size=100, seed=5, weights={"a": 2.0})
    assert {MODULE[row] for row in sequence(sampler, range(3))} == {"a"}


def test_the_sequence_is_fixed_for_all_time():
    """A resumed run depends on these numbers: they must not change between versions."""
    assert Sampler(RANGES, batch_size=6, seed=1).rows(0).tolist() == FIXED[0]
    weighted = Sampler(RANGES, batch_size=6, seed=1, weights={"a": 1, "b": 1})
    assert weighted.rows(0).tolist() == FIXED[1]


FIXED = [[20, 16, 30, 38, 1, 24], [6, 29, 16, 41, 10, 36]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranges": []}, "no rows"),
        ({"ranges": [Range("a", 0, 0)]}, "no rows"),
        ({"batch_size": 0}, "at least one sample"),
        ({"weights": {"aa": 1.0}}, "no module 'aa' to weigh"),
        ({"weights": {"a": -1.0}}, "from 0 up"),
        ({"weights": {"a": float("nan")}}, "from 0 up"),
        ({"weights": {"a": 0.0}}, "at least one module"),
        ({"weights": {"a": 1.0, "b": 1e-9}}, "weight of b is too small"),
    ],
)
def test_refuses_what_cannot_be_sampled(options, message):
    arguments = {"ranges": RANGES, "batch_size": 4, "seed": 0, **options}
    with pytest.raises(SettingsError, match=message):
        Sampler(arguments.pop("ranges"), **arguments)
