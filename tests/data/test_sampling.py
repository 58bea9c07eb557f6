"""Sampling: every row once per epoch, whatever the ranks, and batches of exactly these rows."""

import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import BLOCK, Feed, Prefetcher, Sampler, key_of, permute
from tp_transformer.data.store import open_store
from tp_transformer.data.writer import write_store
from tp_transformer.errors import SettingsError

VOCABULARY = MATHEMATICS.vocabulary


@pytest.fixture
def train(tmp_path):
    with write_store(tmp_path / "store", MATHEMATICS, {"kind": "test"}, rows_per_batch=4) as writer:
        for module, difficulty, count in (
            ("numbers__gcd", "easy", 9),
            ("numbers__lcm", "easy", 5),
            ("numbers__gcd", "hard", 11),
        ):
            questions = [
                f"{module} {difficulty} {'1' * n}?".replace("_", "-") for n in range(count)
            ]
            writer.append("train", module, difficulty, questions, [f"{n}" for n in range(count)])
    return open_store(tmp_path / "store")["train"]


def texts(tokens):
    rows = (VOCABULARY.decode(each.padded(VOCABULARY.pad)[:, 1:]) for each in tokens)
    return sorted(zip(*rows, strict=True))


def test_a_step_holds_the_rows_that_the_sampler_names(train):
    feed = Feed(train, batch_size=8, seed=4)
    sampler = Sampler(train.segments, batch_size=8, seed=4)
    for step in range(5):
        expected = train.rows(sampler.rows(step))
        assert texts(feed.tokens(step)) == sorted(zip(*expected, strict=True))


def test_modules_and_weights_are_passed_on(train):
    feed = Feed(train, batch_size=20, modules="*gcd")
    assert all("gcd" in question for question, _ in texts(feed.tokens(0)))
    feed = Feed(train, batch_size=20, weights={"numbers__lcm": 1.0})
    assert all("lcm" in question for question, _ in texts(feed.tokens(0)))


def held_out(feed):
    return sorted(feed.held_out_rows.tolist())


def test_the_last_rows_of_every_segment_are_held_out(store_of):
    split = store_of({"numbers__gcd": (100, 300), "numbers__lcm": (1, 2)})
    feed = Feed(split, batch_size=8, held_out=13)
    # 13 over 4 segments: 4, 3, 3, 3; at most 5% of 100, one of two, none of one.
    expected = [range(96, 100), range(397, 400), range(402, 403)]
    assert held_out(feed) == [row for rows in expected for row in rows]
    n_kept = 403 - len(held_out(feed))
    assert len(feed.sampler) == n_kept
    steps = -(-n_kept // 8)
    trained = {row for step in range(steps) for row in feed.sampler.rows(step).tolist()}
    assert trained == set(range(403)) - set(held_out(feed))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_a_few_rows_are_held_out_as_requested(store_of, count):
    split = store_of({"numbers__gcd": (50, 50)})
    assert len(Feed(split, batch_size=8, held_out=count).held_out_rows) == count


def test_no_more_than_a_twentieth_is_held_out(store_of):
    split = store_of({"numbers__gcd": (100,), "numbers__lcm": (10_000,)})
    assert len(Feed(split, batch_size=8, held_out=1000).held_out_rows) == 5 + 500
    only = Feed(split, batch_size=8, held_out=1000, weights={"numbers__gcd": 1.0})
    assert held_out(only) == [95, 96, 97, 98, 99]


def test_validation_is_those_rows_by_module_and_shared_by_ranks(store_of):
    split = store_of({"numbers__gcd": (100, 300), "numbers__lcm": (60,)})
    feed = Feed(split, batch_size=8, held_out=21)
    whole = {name: texts(rows) for name, rows in feed.validation().items()}
    assert {name: len(rows) for name, rows in whole.items()} == {
        "numbers__gcd": 12,
        "numbers__lcm": 3,
    }
    found = sorted(pair for rows in whole.values() for pair in rows)
    assert found == sorted(zip(*split.rows(held_out(feed)), strict=True))
    shares = [feed.validation(rank, 4) for rank in range(4)]
    for module, rows in whole.items():
        together = [pair for share in shares for pair in texts(share[module])]
        assert sorted(together) == rows


@pytest.fixture
def store_of(tmp_path):
    def make(counts):
        with write_store(tmp_path / "held out", MATHEMATICS, {"kind": "test"}) as writer:
            for module, sizes in counts.items():
                for difficulty, count in zip(("easy", "hard"), sizes, strict=False):
                    numbers = [str(number) for number in range(count)]
                    questions = [f"{module[-3:]} {difficulty} {number}?" for number in numbers]
                    writer.append("train", module, difficulty, questions, numbers)
        return open_store(tmp_path / "held out")["train"]

    return make


def test_what_is_made_ahead_comes_in_order_and_in_time():
    made = []

    def make(step):
        made.append(step)
        return step * 10

    with Prefetcher(make, first=5, depth=3) as prefetcher:
        assert [prefetcher.next() for _ in range(4)] == [50, 60, 70, 80]
        assert prefetcher.waited < 5
    assert made[:4] == [5, 6, 7, 8]
    assert len(made) <= 4 + 3


def test_waiting_is_measured():
    with Prefetcher(lambda step: time.sleep(0.05), first=0, depth=1) as prefetcher:
        for _ in range(4):
            prefetcher.next()
        assert prefetcher.waited > 0.1


def test_an_error_made_ahead_is_raised_when_its_turn_comes():
    def make(step):
        if step == 2:
            raise ValueError("the third")
        return step

    with Prefetcher(make, first=0) as prefetcher:
        assert [prefetcher.next(), prefetcher.next()] == [0, 1]
        with pytest.raises(ValueError, match="the third"):
            prefetcher.next()


def test_the_thread_ends_promptly():
    before = threading.active_count()
    start = time.monotonic()
    with Prefetcher(lambda step: time.sleep(0.1), first=0) as prefetcher:
        prefetcher.next()
        assert threading.active_count() == before + 1
    assert time.monotonic() - start < 5
    assert threading.active_count() == before


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


def test_each_epoch_and_seed_has_its_own_order():
    rows = sequence(Sampler(RANGES, batch_size=42, seed=0), range(2))
    others = sequence(Sampler(RANGES, batch_size=42, seed=1), range(1))
    orders = (rows[:42], rows[42:], others, list(range(42)))
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_must_be_one_of_them(rank):
    with pytest.raises(ValueError, match="is not one of 3"):
        Sampler(RANGES, batch_size=4, seed=0).rows(0, rank, 3)


@pytest.mark.parametrize(("weights", "size"), [(None, 42), ({"a": 1.0, "b": 0.0}, 17)])
def test_an_epoch_has_the_rows_of_modules_with_a_share(weights, size):
    sampler = Sampler(RANGES, batch_size=size // 2, seed=0, weights=weights)
    assert len(sampler) == size
    assert sampler.epoch(3) == 3 * (size // 2) / size


def test_a_mixture_keeps_its_proportions_over_ranks():
    sampler = Sampler(RANGES, batch_size=BLOCK // 16, seed=5, weights={"a": 1.0, "b": 3.0})
    rows = sequence(sampler, range(16))
    assert Counter(MODULE[row] for row in rows) == {"a": BLOCK // 4, "b": 3 * BLOCK // 4}
    shares = [np.mean([MODULE[row] == "a" for row in rows[i : i + 1024]]) for i in (0, 1024, 2048)]
    assert np.allclose(shares, 0.25, atol=0.05)
    assert sequence(sampler, range(16), n_ranks=3) == rows


def mixture(batch_size):
    ranges = [Range("a", 0, 100), Range("b", 100, 1000)]
    return Sampler(ranges, batch_size=batch_size, seed=5, weights={"a": 1.0, "b": 1.5})


def test_in_a_mixture_each_row_comes_once_before_any_comes_again():
    rows = sequence(mixture(1000), range(9))
    for start, size in ((0, 100), (100, 1000)):
        of_module = [row for row in rows if start <= row < start + size]
        assert len(of_module) > 3 * size
        for epoch in range(3):
            taken = of_module[epoch * size : (epoch + 1) * size]
            assert sorted(taken) == list(range(start, start + size))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_batch_size_does_not_change_the_sequence_of_a_mixture(batch_size):
    rows = sequence(mixture(1000), range(9))
    assert len(rows) > 2 * BLOCK
    for middle in (200, BLOCK, 2 * BLOCK):  # most batches lie within a block, some over its end
        steps = range(middle // batch_size - 20, middle // batch_size + 20)
        first, last = steps[0] * batch_size, (steps[-1] + 1) * batch_size
        assert sequence(mixture(batch_size), steps) == rows[first:last]


def test_a_weight_of_zero_leaves_a_module_out():
    sampler = Sampler(RANGES, batch_size=100, seed=5, weights={"a": 2.0})
    assert {MODULE[row] for row in sequence(sampler, range(3))} == {"a"}


def test_the_sequence_is_fixed_for_all_time():
    """A resumed run depends on these numbers: they must not change between versions."""
    assert Sampler(RANGES, batch_size=6, seed=1).rows(0).tolist() == [20, 16, 30, 38, 1, 24]
    weighted = Sampler(RANGES, batch_size=6, seed=1, weights={"a": 1, "b": 1})
    assert weighted.rows(0).tolist() == [6, 29, 16, 41, 10, 36]
    assert permute(np.arange(8), 8, key_of(0, 0)).tolist() == [7, 1, 5, 0, 6, 2, 3, 4]
    large = permute(np.arange(3), 112_000_000, key_of(1, 2))
    assert large.tolist() == [22_921_224, 15_361_164, 70_846_234]


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
def test_what_cannot_be_sampled_is_an_error(options, message):
    arguments = {"ranges": RANGES, "batch_size": 4, "seed": 0, **options}
    with pytest.raises(SettingsError, match=message):
        Sampler(arguments.pop("ranges"), **arguments)


@given(n=st.integers(1, 3000) | st.sampled_from([65_536, 65_537]), seed=st.integers(0, 2**63))
def test_a_permutation_is_a_bijection(n, seed):
    assert np.array_equal(np.sort(permute(np.arange(n), n, key_of(seed))), np.arange(n))


def test_reaches_every_part_of_a_large_range_without_collisions():
    n = 112_000_000
    image = permute(np.arange(200_000), n, key_of(3))
    assert len(np.unique(image)) == 200_000
    assert image.min() >= 0
    assert image.max() < n
    counts = np.histogram(image, bins=100, range=(0, n))[0]
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert 50 < chi_squared < 170  # 99 degrees of freedom: 1 in 100,000 lies outside


@pytest.mark.parametrize("n", [10, 1000])
def test_neighbours_do_not_stay_together_and_nothing_favours_its_place(n):
    first = permute(np.zeros(4000, int), n, key_of(np.arange(4000)))
    second = permute(np.ones(4000, int), n, key_of(np.arange(4000)))
    for image in (first, second, (second - first) % n):
        counts = np.histogram(image, bins=10, range=(0, n))[0]
        expected = np.full(10, 400.0)
        if image is not first and image is not second and n == 10:
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


@pytest.mark.parametrize(("index", "n"), [(5, 5), (0, 0)])
def test_an_index_out_of_range_is_an_error(index, n):
    with pytest.raises(ValueError, match="must be below"):
        permute(index, n, 1)
