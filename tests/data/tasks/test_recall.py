"""Recall: the answer is there, and neither part of the key nor the list alone gives it away."""

import pytest

from tp_transformer.data.generated import TASKS


def parsed(row):
    """The listed values by key, and the key asked for."""
    key, entries = row.question.split(" ? ")
    words = entries.split(" ")
    values = dict(zip(zip(words[::3], words[1::3], strict=True), words[2::3], strict=True))
    assert 3 * len(values) == len(words)
    return values, tuple(key.split(" "))


@pytest.fixture(scope="module", params=[{}, {"parts": 4, "values": 2, "pairs": 6}])
def rows(request):
    return list(TASKS["recall"](count=2000, test_count=300, **request.param).rows())


def test_the_answer_goes_through_the_list_to_the_value_of_the_key(rows):
    for row in rows:
        values, key = parsed(row)
        *dashes, value = row.answer.split(" ")
        assert value == values[key]
        assert dashes == ["-"] * list(values).index(key)


def test_without_steps_the_answer_is_the_value_of_the_key():
    usual, short = (
        list(TASKS["recall"](count=200, test_count=20, steps=steps).rows())
        for steps in (True, False)
    )
    assert [row.question for row in usual] == [row.question for row in short]
    for row in short:
        values, key = parsed(row)
        assert row.answer == values[key]


def is_ambiguous(values, key):
    """Whether other keys with either part of a key have other values."""
    return all(
        any(
            other[part] == key[part] and values[other] != values[key]
            for other in values
            if other != key
        )
        for part in (0, 1)
    )


def test_neither_part_of_the_key_determines_the_value(rows):
    assert all(is_ambiguous(*parsed(row)) for row in rows)


def test_the_list_alone_does_not_tell_which_key_is_asked_for(rows):
    """At least four keys of each list are ambiguous, and any position may be asked for."""
    positions = set()
    for row in rows:
        values, key = parsed(row)
        assert sum(is_ambiguous(values, other) for other in values) >= 4
        positions.add(list(values).index(key))
    assert positions >= set(range(4))


def test_the_splits(rows):
    by_split = {}
    for row in rows:
        by_split.setdefault(row.split, []).append(parsed(row))
    assert {name: len(found) for name, found in by_split.items()} == {
        "train": 2000,
        "test": 300,
        "unseen": 300,
        "longer": 300,
    }
    asked = {name: {key for _, key in found} for name, found in by_split.items()}
    assert not asked["unseen"] & (asked["train"] | asked["test"] | asked["longer"])
    sizes = {name: {len(values) for values, _ in found} for name, found in by_split.items()}
    (usual,) = sizes["train"]
    assert sizes == {
        "train": {usual},
        "test": {usual},
        "unseen": {usual},
        "longer": {2 * usual},
    }
    listed = {key for values, _ in by_split["train"] for key in values}
    assert asked["unseen"] <= listed  # known from lists, never asked for
