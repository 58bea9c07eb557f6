"""Batches of a store: the rows that the sampler names, all of them, as they are in the store."""

import threading
import time
from types import SimpleNamespace

import pytest

from tp_transformer.data.feed import Ahead, Feed
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampler import Sampler
from tp_transformer.data.store import Segment, open_store
from tp_transformer.data.writer import write_store

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

    with Ahead(make, first=5, depth=3) as ahead:
        assert [ahead.next() for _ in range(4)] == [50, 60, 70, 80]
        assert ahead.waited < 5
    assert made[:4] == [5, 6, 7, 8]
    assert len(made) <= 4 + 3


def test_waiting_is_measured():
    with Ahead(lambda step: time.sleep(0.05), first=0, depth=1) as ahead:
        for _ in range(4):
            ahead.next()
        assert ahead.waited > 0.1
    with Ahead(lambda step: time.sleep(0.05), first=0) as ahead:
        ahead.next()
        time.sleep(0.4)
        before = ahead.waited
        ahead.next()
        assert ahead.waited - before < 0.05


def test_an_error_made_ahead_is_raised_when_its_turn_comes():
    def make(step):
        if step == 2:
            raise ValueError("the third")
        return step

    with Ahead(make, first=0) as ahead:
        assert [ahead.next(), ahead.next()] == [0, 1]
        with pytest.raises(ValueError, match="the third"):
            ahead.next()


def test_the_thread_ends_promptly():
    before = threading.active_count()
    start = time.monotonic()
    with Ahead(lambda step: time.sleep(0.1), first=0) as ahead:
        ahead.next()
        assert threading.active_count() == before + 1
    assert time.monotonic() - start < 5
    assert threading.active_count() == before
