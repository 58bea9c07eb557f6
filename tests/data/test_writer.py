"""Writing a store: what cannot be in one is refused, and failures leave nothing behind."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tp_transformer as tpt
from corpora import make_store, rows_of, segments_of
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.writer import write_store
from tp_transformer.errors import StoreError

GOOD = ("train", "numbers__gcd", "easy", ["q"], ["a"])


def append(path, *rows):
    with write_store(path, MATHEMATICS, {}) as writer:
        for row in rows:
            writer.append(*row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("train", "numbers__gdc", "easy", ["q"], ["a"]), "no module 'numbers__gdc'"),
        (("interpolate", "arithmetic__mul_big", None, ["q"], ["a"]), "no module"),
        (("train", "numbers__gcd", "harder", ["q"], ["a"]), "no difficulty 'harder'"),
        (("interpolate", "numbers__gcd", "easy", ["q"], ["a"]), "no difficulty 'easy'"),
        (("train", "numbers__gcd", "easy", ["q"], []), "1 questions but 0 answers"),
        (("train", "numbers__gcd", "easy", ["q" * 161], ["a"]), "1 to 160 characters"),
        (("train", "numbers__gcd", "easy", ["q"], ["1" * 31]), "1 to 30 characters"),
        (("train", "numbers__gcd", "easy", ["q", ""], ["a", "b"]), "1 to 160 characters"),
        (
            ("train", "numbers__gcd", "easy", ["q"], ["é"]),
            "a character is not one that the task",
        ),
        (("train", "numbers__gcd", "easy", ["q"], [None]), "missing"),
    ],
)
def test_rows_that_the_task_does_not_have_are_an_error(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        append(tmp_path / "store", GOOD, row)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_earlier_store(tmp_path):
    make_store(tmp_path / "store", segments_of())
    before = rows_of(tpt.data.open(tmp_path / "store"))
    with pytest.raises(ValueError, match="no module"):
        append(tmp_path / "store", GOOD, ("train", "nonsense", None, ["q"], ["a"]))
    assert rows_of(tpt.data.open(tmp_path / "store")) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_a_store_replaces_a_store_or_an_empty_folder_and_nothing_else(tmp_path):
    (tmp_path / "store").mkdir()
    for _ in range(2):
        append(tmp_path / "store", GOOD)
    assert len(tpt.data.open(tmp_path / "store")["train"]) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name, message in (("other", "something that is not a store"), ("file", "is a file")):
        with (
            pytest.raises(StoreError, match=message),
            write_store(tmp_path / name, MATHEMATICS, {}),
        ):
            pytest.fail("the block must not run")
    assert (tmp_path / "other" / "thesis.tex").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged on Linux")
def test_a_store_is_there_while_it_is_replaced(tmp_path, monkeypatch):
    store = make_store(tmp_path / "store", segments_of())
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("moved"))
    append(store, GOOD)
    assert rows_of(tpt.data.open(store)) == {GOOD[:3]: [("q", "a")]}
    assert list(tmp_path.iterdir()) == [store]


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write a store to"):
        make_store(tmp_path / "file" / "store", segments_of())


def test_slices_of_arrow_arrays_are_taken_as_they_are(tmp_path):
    questions, answers = pa.array([f"q{i}" for i in range(20)]), pa.array(["a"] * 20)
    with write_store(tmp_path / "store", MATHEMATICS, {}, 4) as writer:
        for start, count in ((3, 5), (8, 1), (9, 11)):
            part = slice(start, start + count)
            writer.append("train", "numbers__gcd", None, questions[part], answers[part])
    split = tpt.data.open(tmp_path / "store")["train"]
    assert split.rows(range(17))[0] == questions[3:].to_pylist()
    batches = list(split.batches(split.segments[0]))
    assert [batch.num_rows for batch in batches] == [4, 4, 4, 4, 1]
