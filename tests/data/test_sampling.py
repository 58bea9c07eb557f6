"""Sampling: every row once per epoch, whatever the ranks, and batches of exactly these rows."""

import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import BLOCK, Feed, Prefetcher, Sampler
from tp_transformer.data.store import Segment, open_store
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


def test_ranks_share_a_step(train):
    feed = Feed(train, batch_size=8, seed=4)
    shares = [texts(feed.tokens(2, rank, 3)) for rank in range(3)]
    assert sorted(pair for share in shares for pair in share) == texts(feed.tokens(2))
    assert [len(share) for share in shares] == [3, 3, 2]


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


def test_as_many_are_held_out_as_asked_for_also_when_that_is_few(store_of):
    split = store_of({"numbers__gcd": (50, 50)})
    for count in (0, 1, 2, 3, 4):
        assert len(Feed(split, batch_size=8, held_out=count).held_out_rows) == count


def test_no_more_than_a_twentieth_is_held_out(store_of):
    split = store_of({"numbers__gcd": (100,), "numbers__lcm": (10_000,)})
    assert len(Feed(split, batch_size=8, held_out=1000).held_out_rows) == 5 + 500
    assert len(Feed(split, batch_size=8).held_out_rows) == 0
    only = Feed(split, batch_size=8, held_out=1000, weights={"numbers__gcd": 1.0})
    assert held_out(only) == [95, 96, 97, 98, 99]


class Incomparable(Segment):
    def __eq__(self, other):
        raise AssertionError("a segment was searched for")


def test_segments_are_not_searched_for():
    """A store of one's own may have thousands of groups, so that each must be visited once."""
    segments = [Incomparable(f"m{i}", None, 30 * i, 30, "", (), ()) for i in range(3)]
    split = SimpleNamespace(select=lambda _: segments, task=MATHEMATICS)
    feed = Feed(split, batch_size=4, held_out=2, weights={"m1": 1.0, "m2": 1.0})
    assert feed.held_out_rows.tolist() == [59, 89]
    assert set(feed.sampler.rows(0) // 30) == {1, 2}


def test_validation_is_those_rows_by_module_and_shared_by_ranks(store_of):
    split = store_of({"numbers__gcd": (100, 300), "numbers__lcm": (60,)})
    feed = Feed(split, batch_size=8, held_out=21)
    whole = {name: pairs(rows) for name, rows in feed.validation().items()}
    assert {name: len(rows) for name, rows in whole.items()} == {
        "numbers__gcd": 12,
        "numbers__lcm": 3,
    }
    found = sorted(pair for rows in whole.values() for pair in rows)
    assert found == sorted(zip(*split.rows(held_out(feed)), strict=True))
    shares = [feed.validation(rank, 4) for rank in range(4)]
    for module, rows in whole.items():
        together = [pair for share in shares for pair in pairs(share[module])]
        assert sorted(together) == rows


def pairs(rows):
    return texts(rows)


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
    with Prefetcher(lambda step: time.sleep(0.05), first=0) as prefetcher:
        prefetcher.next()
        time.sleep(0.4)
        before = prefetcher.waited
        prefetcher.next()
        assert prefetcher.waited - before < 0.05


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
