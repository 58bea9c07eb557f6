"""Exports: other tools read them, and preparing one gives the same store again."""

import json
import tarfile
from collections import Counter
from pathlib import Path

import pandas
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from corpora import keys, make_store, pairs, rows, rows_of, segments_of, text_of
from tp_transformer.data.export import FORMATS, export
from tp_transformer.data.generated import TASKS, write_task
from tp_transformer.data.mathematics.corpus import prepare
from tp_transformer.data.pair_options import Columns
from tp_transformer.data.pairs import prepare as prepare_pairs
from tp_transformer.errors import CorpusError, StoreError

OUTS = {"v1.0": "out", "v1.0 archive": "out.tar.gz", "parquet": "out", "jsonl": "out"}


@pytest.fixture
def store(tmp_path):
    return tpt.data.open(make_store(tmp_path / "store", segments_of()))


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].segments == other[name].segments
        assert one[name].digest == other[name].digest
    assert rows_of(one) == rows_of(other)


@pytest.mark.parametrize("kind", OUTS)
@settings(max_examples=10, deadline=None)
@given(
    segments=st.dictionaries(keys, rows.filter(len), min_size=1, max_size=5),
    rows_per_batch=st.integers(1, 5),
)
def test_preparing_an_export_gives_the_same_store(tmp_path_factory, kind, segments, rows_per_batch):
    folder = tmp_path_factory.mktemp("export")
    if kind.startswith("v1.0"):
        segments = {
            (split, module, "medium" if split == "train" and not difficulty else difficulty): some
            for (split, module, difficulty), some in segments.items()
        }
    store = tpt.data.open(make_store(folder / "store", segments, rows_per_batch))
    out = folder / OUTS[kind]
    export(store, out, format=kind.removesuffix(" archive"))
    prepared = prepare(out, folder / "again")
    assert_same(store, prepared)
    assert prepared.skipped == []


def test_the_layouts(tmp_path, store):
    export(store, tmp_path / "v1.tgz", format="v1.0")
    export(store, tmp_path / "v1", format="v1.0")
    with tarfile.open(tmp_path / "v1.tgz") as archive:
        archived = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
    name = "mathematics_dataset-v1.0/train-hard/arithmetic__mixed.txt"
    assert archived[name] == text_of(pairs("train-hard/arithmetic__mixed", 3))
    assert len(archived) == 6
    for name, content in archived.items():
        assert (tmp_path / "v1" / name.partition("/")[2]).read_bytes() == content
    export(store, tmp_path / "parquet", format="parquet")
    table = parquet.read_table(tmp_path / "parquet" / "data" / "train.parquet")
    assert table.column_names == ["split", "module", "difficulty", "question", "answer"]
    mixed = table.filter(pc.equal(table["module"], "arithmetic__mixed"))
    assert mixed["difficulty"].to_pylist() == ["easy"] * 7 + ["hard"] * 3
    card = (tmp_path / "parquet" / "README.md").read_text("utf-8")
    assert "| data/train.parquet | arithmetic__mixed | 10 |" in card
    assert "| data/extrapolate.parquet | measurement__conversion | 2 |" in card
    export(store, tmp_path / "jsonl", format="jsonl")
    lines = (tmp_path / "jsonl" / "data" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table.to_pylist()
    for kind in ("parquet", "jsonl"):
        names = {path.name for path in (tmp_path / kind / "data").iterdir()}
        assert names == {f"{split}.{kind}" for split in ("train", "interpolate", "extrapolate")}
        assert {path.name for path in (tmp_path / kind).iterdir()} == {"data", "README.md"}


def test_the_same_store_gives_the_same_archive(tmp_path, store):
    for name in ("a.tar.gz", "b.tar.gz"):
        export(store, tmp_path / name, format="v1.0")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_some_modules(tmp_path, store):
    seen = []
    options = {"modules": ["arithmetic__m*"], "progress": lambda *done: seen.append(done)}
    assert export(store, tmp_path / "out", format="jsonl", **options) == 11
    assert seen[-1] == (11, 11)
    lines = "".join(path.read_text() for path in (tmp_path / "out" / "data").iterdir()).splitlines()
    modules = [json.loads(line)["module"] for line in lines]
    assert Counter(modules) == {"arithmetic__mixed": 10, "arithmetic__mul_big": 1}
    assert sorted(path.name for path in (tmp_path / "out" / "data").iterdir()) == [
        "extrapolate.jsonl",
        "train.jsonl",
    ]
    with pytest.raises(StoreError, match="no rows of these modules"):
        export(store, tmp_path / "none", format="jsonl", modules="calculus__*")


@pytest.mark.parametrize("kind", OUTS)
def test_only_an_export_of_the_same_rows_is_replaced(tmp_path, store, kind):
    """A process that is killed when all is written leaves an export; its next call succeeds."""
    out, options = tmp_path / OUTS[kind], {"format": kind.removesuffix(" archive")}
    for _ in range(2):
        assert export(store, out, **options) == 22
    other = make_store(tmp_path / "other", {("train", "numbers__gcd", "easy"): [("1", "2")]})
    with pytest.raises(StoreError, match="already exists"):
        export(tpt.data.open(other), out, **options)
    assert_same(store, prepare(out, tmp_path / "again"))
    if out.is_dir():
        (out / "thesis.tex").touch()
        with pytest.raises(StoreError, match="already exists"):
            export(store, out, **options)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_folder_whose_name_is_not_utf8(tmp_path, monkeypatch, format_):
    folder = tmp_path / "m\udce4rz"
    folder.mkdir()
    monkeypatch.chdir(folder)
    store = tpt.data.open(make_store(Path("store"), segments_of()))
    export(store, "out", format=format_)
    assert_same(store, prepare(Path("out").resolve(), "again"))


def test_a_failure_leaves_nothing(tmp_path, store):
    def fail(*_):
        raise KeyboardInterrupt

    for format_ in FORMATS:
        with pytest.raises(KeyboardInterrupt):
            export(store, tmp_path / "out", format=format_, progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_v1_needs_difficulties(tmp_path):
    store = make_store(tmp_path / "store", {("train", "numbers__gcd", None): [("1", "2")]})
    with pytest.raises(StoreError, match="does not record the difficulty of numbers__gcd"):
        export(tpt.data.open(store), tmp_path / "out", format="v1.0")


def expected_of(store):
    """The rows of a store with their splits and modules, in any order."""
    return sorted(
        (name, one.module, one.difficulty or "", one.question, one.answer)
        for name, split in store.items()
        for one in split
    )


def found_in(rows):
    columns = ("split", "module", "difficulty", "question", "answer")
    return sorted(tuple(row[name] or "" for name in columns) for row in rows)


def test_pandas_sees_every_split(tmp_path, store):
    export(store, tmp_path / "out", format="parquet")
    frame = pandas.read_parquet(tmp_path / "out" / "data")
    frame["difficulty"] = frame["difficulty"].fillna("")
    assert found_in(frame.to_dict("records")) == expected_of(store)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_load_dataset_sees_every_split(tmp_path, store, kind):
    from datasets import load_dataset

    export(store, tmp_path / "out", format=kind)
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {
        name: len(split) for name, split in store.items()
    }
    for name, split in loaded.items():
        assert set(split["split"]) == {name}
    assert found_in(row for split in loaded.values() for row in split) == expected_of(store)


def test_a_split_with_a_hyphen_is_loaded(tmp_path):
    from datasets import load_dataset

    lines = "".join(f"{split},{i},{i}\n" for split in ("train", "hold-out") for i in range(3))
    (tmp_path / "pairs.csv").write_text(f"split,question,answer\n{lines}", "utf-8")
    store = prepare_pairs(tmp_path / "pairs.csv", tmp_path / "store", task="copy")
    export(store, tmp_path / "out", format="parquet")
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert loaded["hold_out"]["split"] == ["hold-out"] * 3


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_pairs_read_back_the_export_of_another_task(tmp_path, kind):
    store = write_task(tmp_path / "store", "lookup", tables=3, depth=2, deeper_count=20)
    export(store, tmp_path / "out", format=kind)
    options = {"task": "lookup", "tokenisation": "words", "columns": Columns(group="module")}
    again = prepare_pairs(tmp_path / "out" / "data", tmp_path / "again", **options)
    assert expected_of(again) == expected_of(store)
    assert again.task.vocabulary == TASKS["lookup"](tables=3).vocabulary


def test_rows_of_an_unknown_module_are_named(tmp_path, store):
    export(store, tmp_path / "out", format="jsonl")
    file = tmp_path / "out" / "data" / "train.jsonl"
    file.write_text(file.read_text().replace("arithmetic__mixed", "arithmetic__mixt", 1))
    message = r"data/train.jsonl, line \d+: train has no module 'arithmetic__mixt'"
    with pytest.raises(CorpusError, match=message):
        prepare(tmp_path / "out", tmp_path / "again")
