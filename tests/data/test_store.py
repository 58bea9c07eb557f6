"""The store: what is written is read, by us and by others, and damage is refused in one line."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from corpora import FILES, keys, make_store, rows, rows_of, segments_of
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import CHARACTERS
from tp_transformer.data.writer import write_store
from tp_transformer.errors import StoreError, TextError

VOCABULARY = MATHEMATICS.vocabulary


@pytest.fixture
def store(tmp_path):
    return tpt.data.open(make_store(tmp_path / "store", segments_of()))


@pytest.fixture
def sorted_store(tmp_path):
    """A store that was written in the order of the modules, as one that is generated."""
    segments = sorted(segments_of().items(), key=lambda item: MATHEMATICS.rank(*item[0]))
    return tpt.data.open(make_store(tmp_path / "sorted", dict(segments)))


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.tuples(keys, rows), max_size=12), rows_per_batch=st.integers(1, 5))
def test_what_is_written_is_read(tmp_path_factory, pieces, rows_per_batch):
    path = tmp_path_factory.mktemp("store") / "store"
    expected = {}
    with write_store(path, MATHEMATICS, {}, rows_per_batch) as writer:
        for key, some in pieces:
            writer.append(*key, [q for q, _ in some], [a for _, a in some])
            if some:
                expected.setdefault(key, []).extend(some)
    opened = tpt.data.open(path)
    assert rows_of(opened) == expected
    for name, split in opened.items():
        of_split = [key for key in expected if key[0] == name]
        of_split.sort(key=lambda key: MATHEMATICS.rank(*key))
        in_order = [row for key in of_split for row in expected[key]]
        assert list(zip(*split.rows(range(len(split))), strict=True)) == in_order
        # What others read is in the order in which modules were written.
        table = pa.ipc.open_file(split.path).read_all()
        assert table.column_names == ["module", "difficulty", "question", "answer"]
        found = {}
        for module, difficulty, *row in zip(*(c.to_pylist() for c in table.columns), strict=True):
            found.setdefault((name, module, difficulty), []).append(tuple(row))
        assert found == {key: expected[key] for key in of_split}
        for segment in split.segments:
            assert sum(batch.num_rows for batch in split.batches(segment)) == segment.count


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_the_texts(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("store") / "store"
    written = data.draw(rows.filter(len))
    split = tpt.data.open(make_store(path, {("train", "numbers__gcd", "easy"): written}))["train"]
    chosen = data.draw(st.lists(st.integers(0, len(written) - 1), max_size=20))
    questions, answers = split.rows(chosen)
    assert (questions, answers) == (
        [written[i][0] for i in chosen],
        [written[i][1] for i in chosen],
    )
    for ragged, texts in zip(split.tokens(chosen, VOCABULARY), (questions, answers), strict=True):
        expected = VOCABULARY.encode(texts)
        np.testing.assert_array_equal(ragged.ids, expected.ids)
        np.testing.assert_array_equal(ragged.offsets, expected.offsets)
        assert ragged.ids.dtype == expected.ids.dtype == np.int64
    for lengths, texts in zip(split.lengths(chosen), (questions, answers), strict=True):
        assert lengths.tolist() == [len(text) for text in texts]


def test_tokens_follow_the_vocabulary_and_refuse_what_it_lacks(store):
    split = store["interpolate"]
    reordered = tpt.Vocabulary(("<eos>", *reversed(CHARACTERS), "<pad>", "<sos>"))
    source, _ = split.tokens([1, 0], reordered)
    np.testing.assert_array_equal(source.ids, reordered.encode(split.rows([1, 0])[0]).ids)
    poor = tpt.Vocabulary(tuple(s for s in VOCABULARY.tokens if s != "?"))
    message = r"text 1: character '\?' at position 1[0-9] is not"
    with pytest.raises(TextError, match=message):
        split.tokens([1, 0], poor)
    with pytest.raises(TextError, match=message):
        poor.encode(split.rows([1, 0])[0])


def test_segments_modules_and_examples(store):
    train = store["train"]
    assert [(s.module, s.difficulty, s.start, s.count) for s in train.segments] == [
        ("algebra__linear_1d", "easy", 0, 5),
        ("arithmetic__mixed", "easy", 5, 7),
        ("arithmetic__mixed", "hard", 12, 3),
    ]
    assert train.modules == {"algebra__linear_1d": range(5), "arithmetic__mixed": range(5, 15)}
    example = train[12]
    assert (example.module, example.difficulty) == ("arithmetic__mixed", "hard")
    assert example.question.startswith("What is 0 + ")
    assert train.max_lengths == (max(len(q) for q in train.rows(range(15))[0]), 3)
    assert [s.difficulty for s in train.select("arith*")] == ["easy", "hard"]
    assert [s.module for s in store["extrapolate"].select("arithmetic__mul")] == [
        "arithmetic__mul_big"
    ]
    assert train.segment_of([14, 0, 5, 11]).tolist() == [2, 0, 1, 1]
    assert list(train) == [train[row] for row in range(15)]
    assert list(train.examples("arithmetic__*")) == [train[row] for row in range(5, 15)]
    assert list(store) == ["train", "interpolate", "extrapolate"]
    assert store.get("nonsense") is None
    assert "train" in store
    assert "nonsense" not in store
    assert repr(store).endswith("train: 15, interpolate: 4, extrapolate: 3)")


def test_rows_that_are_not_there_are_refused(store):
    with pytest.raises(IndexError, match="rows 0 to 14"):
        store["train"].rows([15])
    with pytest.raises(IndexError):
        store["train"].tokens(np.array([-1]), VOCABULARY)
    with pytest.raises(TypeError, match="whole numbers"):
        store["train"].rows([0.5])
    with pytest.raises(StoreError, match="no split 'test'; it has train, interpolate, extrapolate"):
        store["test"]
    assert store["train"].rows([]) == ([], [])
    assert len(store["train"].tokens(np.array([], dtype=np.int64), VOCABULARY)[0].ids) == 0


def test_stores_and_splits_travel_to_other_processes(store):
    copy = pickle.loads(pickle.dumps(store))
    assert rows_of(copy) == rows_of(store)
    assert pickle.loads(pickle.dumps(store["train"]))[3] == store["train"][3]


def test_the_digest_is_that_of_the_content(tmp_path):
    segments = segments_of()
    one = tpt.data.open(make_store(tmp_path / "one", segments, rows_per_batch=2))
    other = tpt.data.open(make_store(tmp_path / "other", dict(reversed(segments.items())), 100))
    assert {n: s.digest for n, s in one.items()} == {n: s.digest for n, s in other.items()}
    key = "train", "arithmetic__mixed", "easy"
    moved = {**segments, key: [("What", "1"), *segments[key][1:]]}
    assert tpt.data.open(make_store(tmp_path / "third", moved))["train"].digest != (
        one["train"].digest
    )


def test_opening_reads_nothing_but_the_description(store, monkeypatch):
    monkeypatch.setattr(pa, "memory_map", lambda *_: pytest.fail("mapped"))
    assert len(tpt.data.open(store.path)["train"]) == 15


def test_the_data_package_needs_no_torch():
    code = (
        "import sys, tp_transformer.data as data; assert 'pyarrow' not in sys.modules; data.open;"
        "assert 'torch' not in sys.modules; assert 'open' in dir(data)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nonsense"):
        tpt.data.nonsense  # noqa: B018


def test_pandas_and_polars_open_it(sorted_store):
    expected = sorted_store["train"].rows(range(15))[0]
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_feather(sorted_store.path / "train.arrow")
    assert frame["question"].tolist() == expected
    assert frame["difficulty"].tolist() == ["easy"] * 12 + ["hard"] * 3
    polars = pytest.importorskip("polars")
    table = polars.read_ipc(sorted_store.path / "train.arrow")
    assert table["question"].to_list() == expected
    assert table["module"].to_list()[4:6] == ["algebra__linear_1d", "arithmetic__mixed"]
    tests = polars.scan_ipc(sorted_store.path / "interpolate.arrow").collect()
    assert tests["difficulty"].to_list() == [None] * 4


def test_hugging_face_datasets_opens_it(sorted_store, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    files = {name: str(split.path) for name, split in sorted_store.items()}
    loaded = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"))
    for name, split in sorted_store.items():
        assert loaded[name]["question"][:] == split.rows(range(len(split)))[0]
        assert loaded[name][0]["module"] == split[0].module
        assert loaded[name][0]["difficulty"] == split[0].difficulty


def redigest(described):
    """Make the digest of a split that of its segments, whatever was done to them."""
    content = [
        [s[key] for key in ("module", "difficulty", "count", "checksum")]
        for s in described["segments"]
    ]
    described["digest"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()


def damage(path, kind):
    """Damage a store in some way; what the refusal must say."""
    manifest = path / "store.json"
    described = json.loads(manifest.read_text())
    if kind == "no folder":
        os.rename(path, path.with_name("gone"))
        return "there is no store"
    if kind == "no manifest":
        manifest.unlink()
        return "is not a store: it has no store.json"
    if kind == "not json":
        manifest.write_text("{")
        return "damaged or not JSON"
    if kind == "not ours":
        manifest.write_text("{}")
        return "does not describe one"
    if kind in ("newer", "older"):
        version = {"newer": 3, "older": 1}[kind]
        manifest.write_text(json.dumps({**described, "version": version}))
        return f"of version {version}, which this release does not read"
    if kind == "incomplete":
        del described["splits"]["train"]["segments"]
        manifest.write_text(json.dumps(described))
        return "store.json is damaged: splits.train has no 'segments'"
    if kind == "file gone":
        (path / "train.arrow").unlink()
        return "train.arrow is missing, but store.json records"
    with (path / "train.arrow").open("r+b") as file:
        if kind == "cut off":
            file.truncate(100)
            return "has 100 bytes, but store.json records"
        file.seek(-40, 2)
        file.write(bytes(40))
        return "damaged or not an Arrow file"


@pytest.mark.parametrize(
    "kind",
    [
        "no folder",
        "no manifest",
        "not json",
        "not ours",
        "newer",
        "older",
        "incomplete",
        "file gone",
        "cut off",
        "overwritten",
    ],
)
def test_damage_is_refused(store, kind):
    message = damage(store.path, kind)
    with pytest.raises(StoreError, match=message) as refusal:
        tpt.data.open(store.path)["train"].rows([0])
    assert "\n" not in str(refusal.value)


def test_a_file_of_other_rows_is_refused(store, tmp_path):
    described = json.loads((store.path / "store.json").read_text())
    train = described["splits"]["train"]
    train["rows"] = 16
    (store.path / "store.json").write_text(json.dumps(described))
    with pytest.raises(StoreError, match=r"rows is 16, and its segments have 15"):
        tpt.data.open(store.path)
    for key in ("question_lengths", "answer_lengths"):
        train["segments"][-1][key][-1] += 1
    train["segments"][-1]["count"] += 1
    redigest(train)
    (store.path / "store.json").write_text(json.dumps(described))
    with pytest.raises(StoreError, match=r"has 15 rows, but store.json records 16"):
        tpt.data.open(store.path)["train"].rows([0])


def test_the_order_of_the_batches_is_in_the_description(store, sorted_store):
    """The file is as Arrow wrote it; rows are numbered by module all the same."""
    described = json.loads((store.path / "store.json").read_text())["splits"]["train"]
    assert described["order"] == [3, 4, 0, 1, 2]
    table = pa.ipc.open_file(store.path / "train.arrow").read_all()
    assert table["module"].to_pylist() == ["arithmetic__mixed"] * 10 + ["algebra__linear_1d"] * 5
    assert store["train"].rows(range(15)) == sorted_store["train"].rows(range(15))
    in_order = json.loads((sorted_store.path / "store.json").read_text())["splits"]["train"]
    assert in_order["order"] is None
    described = json.loads((store.path / "store.json").read_text())
    described["splits"]["train"]["order"] = [1, 0]
    (store.path / "store.json").write_text(json.dumps(described))
    with pytest.raises(StoreError, match="it has 5 record batches"):
        tpt.data.open(store.path)["train"].rows([0])


# Where a value of store.json is, what it becomes, and what is said about it.
WRONG_VALUES = [
    (("sha256",), 7, "sha256 must be a text"),
    (("source",), [], "source must be a mapping, not \\[\\]"),
    (("source", "kind"), [[1]], "nested lists or mappings at 'kind'"),
    (("source", "redrawn"), {"train": "many"}, "redrawn.train must be a whole number"),
    (("source", "redrawn"), {"train": 10**30}, "redrawn.train must be a whole number"),
    (("skipped",), None, "skipped must be a list"),
    (("skipped",), [{"file": "x"}], "skipped\\[0\\] has no"),
    (("made_by",), 7, "made_by must be a text"),
    (("task",), [], "task must be a mapping"),
    (("task", "more"), 1, "task has the unknown key 'more'"),
    (("task", "name"), 7, "task.name must be a text"),
    (("task", "vocabulary"), ["a"], "a vocabulary must list <eos>, <pad>, <sos>"),
    (("task", "vocabulary"), {"tokenisation": "runes", "tokens": []}, "characters or words"),
    (
        ("task", "splits"),
        {"../train": ["a"]},
        "the split name '../train' must be usable as a file name",
    ),
    (("task", "splits", "train"), ["a", "a"], "must have modules with different names"),
    (("task", "splits", "train"), [7], r"task.splits.train\[0\] must be a text"),
    (("task", "continues"), {"a": 1}, "task.continues.a must be a text"),
    (("task", "area_separator"), 7, "task.area_separator must be a text"),
    (("task", "max_answer"), 0, "task.max_answer must be a whole number from 1 up"),
    (("more",), 7, "unknown key 'more'"),
    (("splits",), [], "splits must be a mapping"),
    (("task", "splits"), {"train": ["a"]}, "splits has '[a-z]*', which is no split"),
    (("splits", "train"), None, "splits.train must be a mapping"),
    (("splits", "train", "rows"), -15, "rows must be a whole number from 0 up, not -15"),
    (("splits", "train", "rows"), 15.0, "rows must be a whole number from 0 up, not 15.0"),
    (("splits", "train", "rows"), True, "rows must be a whole number from 0 up, not True"),
    (("splits", "train", "rows"), 10**400, "rows must be a whole number from 0 up, not 1000"),
    (("splits", "train", "bytes"), "many", "bytes must be a whole number"),
    (("splits", "train", "bytes"), 10, "has 15 rows in 10 bytes"),
    (("splits", "train", "digest"), "0" * 64, "digest is not that of its segments"),
    (("splits", "train", "sha256"), 7, "sha256 must be a text"),
    (("splits", "train", "order"), 7, "order must be a list"),
    (("splits", "train", "order"), [0, 0, 1], "order must have each number once"),
    (("splits", "train", "order"), [0, -1], "order must be whole numbers from 0 up"),
    (("splits", "train", "segments"), {}, "segments must be a list"),
    (("splits", "train", "segments", 0), [], r"segments\[0\] must be a mapping"),
    (("splits", "train", "segments", 0, "module"), "numbers__gdc", "which train does not have"),
    (("splits", "train", "segments", 0, "module"), ["x"], "module must be a text"),
    (("splits", "train", "segments", 0, "module"), "numbers__gcd", "not in the order of the mod"),
    (("splits", "train", "segments", 0, "difficulty"), "odd", "difficulty is 'odd'"),
    (("splits", "interpolate", "segments", 0, "difficulty"), "easy", "difficulty is 'easy'"),
    (("splits", "train", "segments", 1, "start"), 4, "start is 4, where 5 rows precede it"),
    (("splits", "train", "segments", 1, "count"), 0, "count must be a whole number from 1 up"),
    (("splits", "train", "segments", 1, "count"), 8, "must count 8 texts"),
    (("splits", "train", "segments", 1, "checksum"), 7, "checksum must be a text"),
    (("splits", "train", "segments", 1, "answer_lengths"), [0, 7.0], "must be whole numbers"),
    (("splits", "train", "segments", 1, "answer_lengths"), [0, 8, -1], "must be whole numbers"),
    (("splits", "train", "segments", 1, "answer_lengths"), [7], "of at most 30 characters"),
    (("splits", "train", "segments", 1, "answer_lengths"), [7, 0], "none of them empty"),
    (("splits", "train", "segments", 1, "answer_lengths"), [0] * 31 + [7], "of at most 30"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG_VALUES)
def test_a_wrong_value_in_the_description_is_refused_when_opened(store, path, value, message):
    file = store.path / "store.json"
    described = json.loads(file.read_text())
    place = described
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file.write_text(json.dumps(described))
    with pytest.raises(StoreError, match=f"store.json is damaged: .*{message}") as refusal:
        tpt.data.open(store.path)
    assert len(str(refusal.value)) < 500
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ['{"a": NaN}', "[" * 100_000, "9" * 5000, '"\\ud800"', "\0"])
def test_odd_json_is_refused(store, text):
    (store.path / "store.json").write_text(text)
    with pytest.raises(StoreError, match=r"store.json"):
        tpt.data.open(store.path)


# What is written over the first offsets of the questions, as 32-bit numbers.
WRONG_OFFSETS = {
    "huge": [2**30] * 4,
    "negative": [-(2**30)] * 4,
    "falling": [0, 60, 30, 45],
    "empty": [0, 0, 15, 30],
    "beyond": [0, 15, 30, 100_000],
    "wrapping": [0, 2**31 - 1, -(2**31), 30],
}
USE = """
import sys
from pathlib import Path
import numpy as np
import tp_transformer as tpt
from tp_transformer.data.export import export
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.errors import StoreError
vocabulary = MATHEMATICS.vocabulary
uses = {
    "rows": lambda store: store["train"].rows(range(15)),
    "lengths": lambda store: store["train"].lengths(range(15)),
    "tokens": lambda store: store["train"].tokens(np.arange(15), vocabulary),
    "examples": lambda store: list(store["train"]),
    "parquet": lambda store: export(store, store.path / "out", format="parquet"),
    "jsonl": lambda store: export(store, store.path / "out", format="jsonl"),
    "v1.0": lambda store: export(store, store.path / "out", format="v1.0"),
}
for path in sys.argv[1:]:
    for name, use in uses.items():
        print(path, name, flush=True)
        try:
            use(tpt.data.open(path))
        except StoreError as error:
            assert "is damaged" in str(error), error
            assert "\\n" not in str(error)
        else:
            sys.exit("not noticed")
        assert not Path(path, "out").exists()
"""


def test_wrong_offsets_are_noticed_before_they_are_used(store, tmp_path):
    """In a process of its own: what follows wrong offsets ends in a segmentation fault."""
    data = (store.path / "train.arrow").read_bytes()
    batch = pa.ipc.open_file(store.path / "train.arrow").get_batch(0)
    intact = np.frombuffer(batch.column("question").buffers()[1], "<i4")[:5].tobytes()
    assert data.count(intact) >= 1
    for name, offsets in WRONG_OFFSETS.items():
        wrong = np.array(offsets, "<i4").tobytes()
        shutil.copytree(store.path, tmp_path / name)
        damaged = data.replace(intact, wrong + intact[len(wrong) :], 1)
        (tmp_path / name / "train.arrow").write_bytes(damaged)
    command = [sys.executable, "-c", USE, *(str(tmp_path / name) for name in WRONG_OFFSETS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-200:]} {done.returncode} {done.stderr[-2000:]}"
    assert len(done.stdout.splitlines()) == 7 * len(WRONG_OFFSETS)


def test_the_description(store):
    described = json.loads((store.path / "store.json").read_text())
    assert described["format"] == "tp-transformer-store"
    assert described["source"] == {"kind": "test"}
    segment = described["splits"]["train"]["segments"][0]
    questions, _ = store["train"].rows(range(5))
    assert segment["question_lengths"] == np.bincount([len(q) for q in questions]).tolist()
    assert (
        sum(segment["answer_lengths"]) == segment["count"] == FILES["train-easy/algebra__linear_1d"]
    )
