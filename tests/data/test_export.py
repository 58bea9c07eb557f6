"""Exports: other tools read them, and preparing one gives the same store again."""

import json
import tarfile

import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from corpora import SAMPLE, keys, make_store, pairs, rows, rows_of, segments_of, text_of
from tp_transformer.data.export import FORMATS, export
from tp_transformer.data.mathematics.corpus import prepare
from tp_transformer.foundation.errors import StoreError

OUTS = {"v1.0": "out", "v1.0 archive": "out.tar.gz", "parquet": "out", "jsonl": "out"}


@pytest.fixture
def store(tmp_path):
    return tpt.data.open(make_store(tmp_path / "store", segments_of()))


def again(store, folder, kind):
    """The store that comes of exporting and preparing it."""
    out = folder / OUTS[kind]
    export(store, out, format=kind.removesuffix(" archive"))
    return prepare(out, folder / "again")


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].segments == other[name].segments
        assert one[name].digest == other[name].digest
    assert rows_of(one) == rows_of(other)


@pytest.mark.parametrize("kind", OUTS)
def test_prepare_after_export_is_the_identity(tmp_path, store, kind):
    prepared = again(store, tmp_path, kind)
    assert_same(store, prepared)
    assert prepared.skipped == []


@pytest.mark.parametrize("kind", OUTS)
@settings(max_examples=10, deadline=None)
@given(
    segments=st.dictionaries(keys, rows.filter(len), min_size=1, max_size=5),
    rows_per_batch=st.integers(1, 5),
)
def test_of_any_store(tmp_path_factory, kind, segments, rows_per_batch):
    folder = tmp_path_factory.mktemp("export")
    if kind.startswith("v1.0"):
        segments = {
            (split, module, "medium" if split == "train" and not difficulty else difficulty): some
            for (split, module, difficulty), some in segments.items()
        }
    store = tpt.data.open(make_store(folder / "store", segments, rows_per_batch))
    assert_same(store, again(store, folder, kind))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    if not SAMPLE.exists():
        pytest.skip("the sample of the published data is not here")
    return prepare(SAMPLE, tmp_path_factory.mktemp("sample") / "store")


@pytest.mark.parametrize(
    "kind",
    ["v1.0 archive", *(pytest.param(k, marks=pytest.mark.slow) for k in ("parquet", "jsonl"))],
)
def test_of_the_sample(tmp_path, sample, kind):
    prepared = again(sample, tmp_path, kind)
    for name in sample:
        assert sample[name].segments == prepared[name].segments
        assert sample[name].digest == prepared[name].digest


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
    train = "arithmetic__mixed/train-00000-of-00001"
    table = parquet.read_table(tmp_path / "parquet" / f"{train}.parquet")
    assert table["difficulty"].to_pylist() == ["easy"] * 7 + ["hard"] * 3
    export(store, tmp_path / "jsonl", format="jsonl")
    lines = (tmp_path / "jsonl" / f"{train}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table.to_pylist()
    names = {path.name for path in (tmp_path / "jsonl" / "measurement__conversion").iterdir()}
    assert names == {"test-00000-of-00001.jsonl", "extrapolate-00000-of-00001.jsonl"}


def test_the_same_store_gives_the_same_archive(tmp_path, store):
    for name in ("a.tar.gz", "b.tar.gz"):
        export(store, tmp_path / name, format="v1.0")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_some_modules(tmp_path, store):
    seen = []
    options = {"modules": ["arithmetic__m*"], "progress": lambda *done: seen.append(done)}
    assert export(store, tmp_path / "out", format="jsonl", **options) == 11
    assert seen[-1] == (11, 11)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "arithmetic__mixed",
        "arithmetic__mul_big",
    ]
    with pytest.raises(StoreError, match="no rows of the modules"):
        export(store, tmp_path / "none", format="jsonl", modules="calculus__*")


def test_nothing_is_overwritten(tmp_path, store):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    for format_ in FORMATS:
        with pytest.raises(StoreError, match="already exists"):
            export(store, tmp_path / "out", format=format_)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_failure_leaves_nothing(tmp_path, store):
    def fail(*_):
        raise KeyboardInterrupt

    for format_ in FORMATS:
        with pytest.raises(KeyboardInterrupt):
            export(store, tmp_path / "out", format=format_, progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_v1_needs_difficulties(tmp_path):
    store = make_store(tmp_path / "store", {("train", "numbers__gcd", None): [("1", "2")]})
    with pytest.raises(StoreError, match="does not tell the difficulty of numbers__gcd"):
        export(tpt.data.open(store), tmp_path / "out", format="v1.0")
