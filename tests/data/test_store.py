"""Stores: what is written is read, by us and by others; damage and failures are named."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from corpora import FILES, keys, make_store, rows, rows_of, segments_of
from tp_transformer.cli import main
from tp_transformer.data.export import FORMATS, export
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import verify
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


def test_rows_that_do_not_exist_are_an_error(store):
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


def change(path, keys, value):
    """Change a value of `store.json`, and its hash accordingly."""
    file = path / "store.json"
    described = json.loads(file.read_text())
    place = described
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    del described["sha256"]
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    file.write_text(json.dumps({**described, "sha256": digest}))


def overwrite(file, start, content):
    with file.open("r+b") as opened:
        opened.seek(start, os.SEEK_END if start < 0 else os.SEEK_SET)
        opened.write(content)


DAMAGE = {
    "there is no store": lambda path: os.rename(path, path.with_name("gone")),
    "is not a store: it has no store.json": lambda path: (path / "store.json").unlink(),
    "damaged or not JSON": lambda path: (path / "store.json").write_text("["),
    "does not describe one": lambda path: (path / "store.json").write_text("{}"),
    "of version 3, which this release does not read": lambda path: change(path, ["version"], 3),
    "it was changed after it was written": lambda path: overwrite(
        path / "store.json", 0, (path / "store.json").read_bytes().replace(b"test", b"rest", 1)
    ),
    "train.arrow is missing, but store.json records": lambda p: (p / "train.arrow").unlink(),
    "has 100 bytes, but store.json records": lambda path: os.truncate(path / "train.arrow", 100),
    "damaged or not an Arrow file": lambda path: overwrite(path / "train.arrow", -40, bytes(40)),
    "it has 5 record batches": lambda path: change(path, ["splits", "train", "order"], [1, 0]),
    "does not have the rows that store.json describes": lambda path: (
        shutil.copy(
            make_store(path / "more", {("train", "numbers__gcd", None): [("a", "1")] * 20})
            / "train.arrow",
            path,
        )
        and change(path, ["splits", "train", "bytes"], (path / "train.arrow").stat().st_size)
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named_in_one_line(store, message):
    DAMAGE[message](store.path)
    with pytest.raises(StoreError, match=message) as error:
        tpt.data.open(store.path)["train"].rows([0])
    assert "\n" not in str(error.value)


def test_the_order_of_the_batches_is_in_the_description(store, sorted_store):
    """The file is as Arrow wrote it; rows are numbered by module all the same."""
    described = json.loads((store.path / "store.json").read_text())["splits"]["train"]
    assert described["order"] == [3, 4, 0, 1, 2]
    table = pa.ipc.open_file(store.path / "train.arrow").read_all()
    assert table["module"].to_pylist() == ["arithmetic__mixed"] * 10 + ["algebra__linear_1d"] * 5
    assert store["train"].rows(range(15)) == sorted_store["train"].rows(range(15))
    in_order = json.loads((sorted_store.path / "store.json").read_text())["splits"]["train"]
    assert in_order["order"] is None


# Where a value of store.json is, what it becomes, and what is said about it.
WRONG_VALUES = [
    (("source",), [], "Expected `object`"),
    (("source", "kind"), [[1]], r"at `\$.source"),
    (("skipped",), [{"file": "x"}], "missing required field `reason`"),
    (("task",), [], "task must be a mapping"),
    (("task", "name"), 7, r"Expected `str`, got `int` - at `\$.name"),
    (("task", "vocabulary"), ["a"], "a vocabulary must list <eos>, <pad>, <sos>"),
    (("task", "splits"), {"../train": ["a"]}, "'../train' must be usable as a file name"),
    (("task", "splits", "train"), ["a", "a"], "must have modules with different names"),
    (("task", "max_answer"), 0, "Expected `int` >= 1"),
    (("splits", "train"), None, "Expected `object`, got `null`"),
    (("splits", "train", "rows"), 16, "has 16 rows, and its segments have 15"),
    (("splits", "train", "rows"), 10**400, "Expected `int`"),
    (("splits", "train", "order"), [0, -1], "Expected `int` >= 0"),
    (("splits", "train", "segments", 0, "module"), "numbers__gdc", "no rows of 'numbers__gdc'"),
    (("splits", "train", "segments", 0, "difficulty"), "odd", "'odd'"),
    (("splits", "train", "segments", 1, "start"), 4, "the rows that they describe"),
    (("splits", "train", "segments", 1, "answer_lengths"), [7.5], "Expected `int`"),
    (("splits", "train", "segments", 1, "answer_lengths"), [8], "the rows that they describe"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG_VALUES)
def test_a_wrong_value_in_the_description_is_named_when_opened(store, path, value, message):
    change(store.path, path, value)
    with pytest.raises(StoreError, match=f"store.json is damaged: .*{message}") as error:
        tpt.data.open(store.path)
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ['{"a": NaN}', "[" * 100_000, "9" * 5000, '"\\ud800"', "\0"])
def test_odd_json_is_no_store(store, text):
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
USES = {
    "rows": lambda store: store["train"].rows(range(15)),
    "lengths": lambda store: store["train"].lengths(range(15)),
    "tokens": lambda store: store["train"].tokens(np.arange(15), VOCABULARY),
    "examples": lambda store: list(store["train"]),
    **{
        f"export as {format_}": lambda store, format_=format_: export(
            store, store.path / "out", format=format_
        )
        for format_ in FORMATS
    },
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("offsets", WRONG_OFFSETS.values(), ids=WRONG_OFFSETS)
def test_wrong_offsets_are_noticed_before_they_are_used(store, offsets, use):
    data = (store.path / "train.arrow").read_bytes()
    batch = pa.ipc.open_file(store.path / "train.arrow").get_batch(0)
    intact = np.frombuffer(batch.column("question").buffers()[1], "<i4")[:5].tobytes()
    wrong = np.array(offsets, "<i4").tobytes()
    damaged = data.replace(intact, wrong + intact[len(wrong) :], 1)
    assert damaged != data
    (store.path / "train.arrow").write_bytes(damaged)
    with pytest.raises(StoreError, match="is damaged") as error:
        USES[use](tpt.data.open(store.path))
    assert "\n" not in str(error.value)
    assert not (store.path / "out").exists()


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


def test_verify_passes_an_intact_store(store, capsys):
    seen = []
    verify(store.path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert all(done <= total for done, total in seen)
    main(["data", "verify", str(store.path)])
    assert capsys.readouterr().out.splitlines() == [
        "store.json: matches its hash",
        "train.arrow: 15 rows, matches its hash",
        "interpolate.arrow: 4 rows, matches its hash",
        "extrapolate.arrow: 3 rows, matches its hash",
    ]


def test_verify_names_the_file_of_any_changed_byte(store, capsys):
    file = store.path / "train.arrow"
    intact = file.read_bytes()
    for position in range(0, len(intact), 13):
        overwrite(file, position, bytes([intact[position] ^ 1]))
        with pytest.raises(StoreError, match=r"is damaged: train\.arrow does not match its hash$"):
            verify(store.path)
        file.write_bytes(intact)
    for name in ("train.arrow", "extrapolate.arrow"):
        overwrite(store.path / name, 100, b"x")
    with pytest.raises(SystemExit) as stop:
        main(["data", "verify", str(store.path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"tpt: {store.path} is damaged: train.arrow, extrapolate.arrow do not match their hashes\n"
    )


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


def test_a_source_that_cannot_be_read_back_is_an_error(tmp_path):
    with (
        pytest.raises(ValueError, match="source"),
        write_store(tmp_path / "store", MATHEMATICS, {"files": [["a"]]}) as writer,
    ):
        writer.append(*GOOD)
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
