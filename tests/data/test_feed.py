"""Batches of a store: the rows that the sampler names, all of them, as they are in the store."""

import pytest

from tp_transformer.data.feed import Feed
from tp_transformer.data.sampler import Sampler
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.data.writer import write_store

VOCABULARY = Vocabulary()


@pytest.fixture
def train(tmp_path):
    with write_store(tmp_path / "store", {"kind": "test"}, rows_per_batch=4) as writer:
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


def texts(parts):
    pairs = []
    for part in parts:
        questions = VOCABULARY.decode(part.source[:, 1:].numpy())
        pairs += zip(questions, VOCABULARY.decode(part.target_output.numpy()), strict=True)
    return sorted(pairs)


def test_a_step_holds_the_rows_that_the_sampler_names(train):
    feed = Feed(train, batch_size=8, seed=4)
    sampler = Sampler(train.segments, batch_size=8, seed=4)
    for step in range(5):
        expected = train.rows(sampler.rows(step))
        assert texts(feed.parts(step)) == sorted(zip(*expected, strict=True))


def test_ranks_share_a_step(train):
    feed = Feed(train, batch_size=8, seed=4)
    shares = [texts(feed.parts(2, rank, 3)) for rank in range(3)]
    assert sorted(pair for share in shares for pair in share) == texts(feed.parts(2))
    assert [len(share) for share in shares] == [3, 3, 2]


def test_modules_and_weights_are_passed_on(train):
    feed = Feed(train, batch_size=20, modules="*gcd")
    assert all("gcd" in question for question, _ in texts(feed.parts(0)))
    feed = Feed(train, batch_size=20, weights={"numbers__lcm": 1.0})
    assert all("lcm" in question for question, _ in texts(feed.parts(0)))
