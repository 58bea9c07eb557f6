"""Pairs of one's own: every format gives the same store, and faults are named by file and line."""

import csv
import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.data import pairs
from tp_transformer.data.pairs import PAIR_FORMATS
from tp_transformer.data.pairs import prepare as prepare_pairs
from tp_transformer.errors import CorpusError, SettingsError

ROWS = [(f"größe {i}, “{i % 7}”?", f"{i}→ж") for i in range(200)]
HEADER = ("question", "answer")


def write(folder, suffix, rows=ROWS, header=HEADER):
    """Write rows as a file of a format."""
    file = folder / f"pairs{suffix}"
    if suffix in {".csv", ".tsv"}:
        with file.open("w", encoding="utf-8", newline="") as text:
            csv.writer(text, delimiter="," if suffix == ".csv" else "\t").writerows([header, *rows])
    elif suffix == ".parquet":
        columns = zip(*rows, strict=True)
        parquet.write_table(pa.table(dict(zip(header, map(list, columns), strict=True))), file)
    elif suffix == ".txt":
        file.write_text("".join(f"{question}\n{answer}\n" for question, answer in rows), "utf-8")
    else:
        lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
        file.write_text("\n".join(lines), "utf-8")
    return file


def rows_of(store):
    return {name: {(one.question, one.answer) for one in split} for name, split in store.items()}


@pytest.mark.parametrize("suffix", PAIR_FORMATS)
def test_every_format_gives_the_same_store(suffix, tmp_path):
    store = prepare_pairs(write(tmp_path, suffix), tmp_path / "store", task="mine")
    other = prepare_pairs(write(tmp_path, ".csv"), tmp_path / "other", task="mine")
    assert store.task == other.task
    assert {name: split.digest for name, split in store.items()} == {
        name: split.digest for name, split in other.items()
    }
    found = rows_of(store)
    assert found["train"] | found["test"] == set(ROWS)
    assert not found["train"] & found["test"]
    assert 5 <= len(found["test"]) <= 40
    assert store["train"].modules.keys() == {"mine"}
    assert {"ö", "ж", "“", " "} <= set(store.task.vocabulary.tokens)
    assert not store.skipped


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_columns_name_splits_and_groups(suffix, tmp_path):
    rows = [(f"q {i}", f"a {i % 3}", ("train", "dev")[i % 4 == 0], f"g{i % 2}") for i in range(40)]
    header = ("frage", "antwort", "teil", "art")
    options = {"question": "frage", "answer": "antwort", "split": "teil", "group": "art"}
    arguments = [f"--{key}-column={value}" for key, value in options.items()]
    arguments += ["--task=mine", f"--out={tmp_path / 'store'}", "--tokenisation=words"]
    file = write(tmp_path, suffix, rows, header)
    cli.main(["data", "prepare", str(file), *arguments])
    store = tpt.data.open(tmp_path / "store")
    assert list(store) == ["train", "dev"]
    assert store.task.vocabulary.is_words
    assert store.task.splits == {"train": ("g1", "g0"), "dev": ("g0",)}
    for question, answer, split, group in rows:
        chosen = {(one.question, one.answer) for one in store[split].examples(group)}
        assert (question, answer) in chosen
    assert sum(map(len, store.values())) == 40


def test_the_files_of_a_folder_are_splits(tmp_path):
    (tmp_path / "in").mkdir()
    for name, rows in (("train", ROWS[:9]), ("hard", ROWS[9:12])):
        write(tmp_path / "in", ".csv", rows).rename(tmp_path / "in" / f"{name}.csv")
    store = prepare_pairs(tmp_path / "in", tmp_path / "store", task="mine")
    assert rows_of(store) == {"train": set(ROWS[:9]), "hard": set(ROWS[9:12])}


def test_shares_and_seeds(tmp_path):
    file = write(tmp_path, ".jsonl", [*ROWS, *ROWS])
    found = {}
    for seed in (0, 0, 1):
        store = prepare_pairs(
            file,
            tmp_path / "store",
            task="mine",
            seed=seed,
            shares={"train": 0.5, "dev": 0.3, "test": 0.2},
            overwrite=True,
        )
        assert [round(len(split) / 400, 1) for split in store.values()] == pytest.approx(
            [0.5, 0.3, 0.2], abs=0.11
        )
        rows = rows_of(store)
        assert not rows["train"] & (rows["dev"] | rows["test"])  # repeated rows stay together
        assert found.setdefault(seed, rows) == rows
    assert found[0] != found[1]


def test_test_questions_that_occur_in_training_are_counted(tmp_path, capsys):
    rows = [("a", "1", "train"), ("b", "2", "train"), ("b", "3", "test"), ("c", "4", "test")]
    file = write(tmp_path, ".tsv", rows, ("question", "answer", "split"))
    cli.main(["data", "prepare", str(file), "--task=mine", f"--out={tmp_path / 'store'}"])
    printed = capsys.readouterr().out
    assert "1 test questions occur in training" in printed
    assert "test/mine 1" in printed


def test_the_last_rows_of_a_long_file_are_a_random_sample(tmp_path, monkeypatch):
    """Training holds them out for validation."""
    monkeypatch.setattr(pairs, "_BLOCK", 100)
    rows = [(str(number), "x") for number in range(5000)]
    store = prepare_pairs(write(tmp_path, ".csv", rows), tmp_path / "store", task="mine")
    train = store["train"]
    last = [int(train[row].question) for row in range(len(train) - 80, len(train))]
    assert 1500 < np.mean(last) < 3500
    assert np.std(last) > 1000


FAULTS = {
    ".csv": [
        ('question,answer\na,b\n"c,d",e\nf\n', 4, "a row with another number of columns"),
        ("question,answer\na,b\n,c\n", 3, "empty question"),
        ("question,answer\na,b\nc,\n", 3, "empty answer"),
        (
            'question,answer\na,b\n"c\nd",e\n',
            3,
            "question with a character that is not text: '\\n'",
        ),
        ('question,answer\na,b\n\n"c"d,e\n', 4, "not a row of a table"),
        ("question,answer,split\na,b,train\na,b,../x\n", 3, "a split that cannot be a file name"),
        ("question,answer,group\na,b,x\na,b,\n", 3, "empty group"),
        ('question,answer,group\na,b,x\na,b,"x\ny"\n', 3, "a group that cannot be printed: 'x"),
        ("question,answer\na,b\n\udcff,e\n", 3, "question with bytes that are not UTF-8"),
    ],
    ".jsonl": [
        ('{"question": "a", "answer": "b"}\n{"question": \n', 2, "not a JSON object"),
        ('{"question": "a", "answer": "b"}\n{"question": "a"}\n', 2, "answer that is missing"),
        (
            '{"question": "a", "answer": "b"}\n{"question": [], "answer": 1}\n',
            2,
            "question that is missing or not a text",
        ),
        (
            '{"question": "a", "answer": "b"}\n\n{"question": "c", "answer": NaN}\n',
            3,
            "answer that is missing or not a text",
        ),
        (
            '{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d", "split": "x"}\n',
            2,
            "a column that the first row lacks: 'split'",
        ),
    ],
    ".txt": [
        ("a\nb\nc\n", 3, "a question without an answer"),
        ("a\nb\n\nd\n", 3, "empty question"),
    ],
}


@pytest.mark.parametrize(
    ("suffix", "text", "line", "reason"),
    [(suffix, *fault) for suffix, faults in FAULTS.items() for fault in faults],
)
def test_a_fault_is_named_by_file_and_line(suffix, text, line, reason, tmp_path, capsys):
    file = tmp_path / f"pairs{suffix}"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    arguments = ["data", "prepare", str(file), "--task=mine", f"--out={tmp_path / 'store'}"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert f"tpt: pairs{suffix}, line {line}: {reason}" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "store").exists()
    with_splits = [] if "answer,split" in text else ["--splits=train=1"]
    cli.main([*arguments, "--on-error=skip", *with_splits])
    store = tpt.data.open(tmp_path / "store")
    (entry,) = store.skipped
    assert (entry["first_line"], entry["rows"]) == (line, 1)
    assert ("a", "b") in rows_of(store)["train"]
    assert f"line {line}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("frage,answer\na,b\n", [], "no column 'question'; name the column of questions with --qu"),
        ("question,answer,answer\na,b,c\n", [], "pairs.csv has 2 columns 'answer'"),
        (
            "question,answer,fold\na,b,c\n",
            ["--split-column=fodl"],
            "no column 'fodl' (did you mean 'fold'?); name the column of splits with --split-c",
        ),
        ("question,answer\na,b\n", ["--group-column=kind"], "no column 'kind'; name the column of"),
        ("\x00q\x00u\udcff", [], "pairs.csv is not a text in UTF-8"),
        ("question,answer\na,b\n", ["--splits=train=0.5"], "shares above 0 with a sum of 1"),
        ("question,answer\na,b\n", ["--splits=train"], "shares above 0 with a sum of 1"),
        (
            "question,answer\na,b\n",
            ["--splits=a/b=1"],
            "the split name 'a/b' cannot be a file name",
        ),
        ("question,answer\na,b\n", [], "none of the 1 rows is in the split"),
        ("question,answer,split\na,b,x\n", ["--splits=train=1"], "names the splits of its rows"),
        ("question,answer\n", [], "has no rows"),
        ("", [], "no column 'question'"),
        ("question,answer\na  b,c\n", ["--tokenisation=words"], "not separated by single blanks"),
        ("question,answer\n<pad>,c\n", ["--tokenisation=words"], "a word that is reserved: <pad>"),
        ("question,answer\na,b\n", ["--task=mathematics"], "cannot be called 'mathematics'"),
        ("question,answer\na,b\n", ["--task=a b"], "cannot be called 'a b'"),
    ],
)
def test_other_mistakes_are_one_line(text, options, message, tmp_path, capsys):
    file = tmp_path / "pairs.csv"
    file.write_text(text, "utf-8", "surrogateescape")
    arguments = ["data", "prepare", str(file), f"--out={tmp_path / 'store'}", "--task=mine"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*arguments, *options])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.csv"}


def test_too_many_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "_MOST_GROUPS", 3)
    rows = [("a", "b", f"g{number}") for number in range(5)]
    file = write(tmp_path, ".csv", rows, ("question", "answer", "group"))
    with pytest.raises(CorpusError, match="more than 3 groups"):
        prepare_pairs(file, tmp_path / "store", task="mine")


def test_without_a_task_it_is_the_mathematics_dataset_or_a_clear_message(tmp_path, capsys):
    file = write(tmp_path, ".csv")
    for source in (file, tmp_path):
        with pytest.raises(SystemExit):
            cli.main(["data", "prepare", str(source), f"--out={tmp_path / 'store'}"])
        said = capsys.readouterr().err
        assert "is not a copy of the Mathematics Dataset" in said
        assert "--task NAME" in said
    folder = tmp_path / "v1" / "train-easy"
    folder.mkdir(parents=True)
    (folder / "numbers__gcd.txt").write_text("What is 3?\n3\n")
    arguments = ["data", "prepare", str(tmp_path / "v1"), f"--out={tmp_path / 'store'}"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--splits=train=1"])
    assert "--splits is for pairs of your own" in capsys.readouterr().err
    cli.main(arguments)
    assert tpt.data.open(tmp_path / "store").task.name == "mathematics"


def test_from_python_a_task_makes_them_pairs(tmp_path):
    file = write(tmp_path, ".csv")
    with pytest.raises(SettingsError, match="name their task"):
        tpt.data.prepare(file, tmp_path / "store")
    store = tpt.data.prepare(file, tmp_path / "store", task="mine", tokenisation="words")
    assert store.task.name == "mine"
    assert store.task.vocabulary.tokenisation == "words"
    with pytest.raises(SettingsError, match="seed are for pairs of your own"):
        tpt.data.prepare(__file__, tmp_path / "mathematics", seed=1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("other.csv", 'name is "pairs.csv", not "other.csv"'),
        ("--task=other", 'task is "mine", not "other"'),
        ("--tokenisation=words", 'tokenisation is "characters", not "words"'),
        ("--seed=1", "seed is 0, not 1"),
        ("--splits=train=0.5,test=0.5", "splits is {"),
        ("--question-column=answer", "columns is {"),
    ],
)
def test_another_store_is_not_overwritten(option, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file, store = write(tmp_path, ".csv"), tmp_path / "store"
    shutil.copy(file, "other.csv")

    def content():
        return {path.name: path.read_bytes() for path in store.iterdir()}

    command = ["data", "prepare", "--out=store"]
    for _ in range(2):  # the same store may be written again
        cli.main([*command, "pairs.csv", "--task=mine"])
    before = content()
    capsys.readouterr()
    command += ["pairs.csv"] if "--" in option else []
    command += [option] if "--task" in option else ["--task=mine", option]
    with pytest.raises(SystemExit):
        cli.main(command)
    said = capsys.readouterr().err
    assert f"store is another store: {message}" in said
    assert said.endswith("--overwrite replaces it\n")
    assert content() == before
    cli.main([*command, "--overwrite"])
    assert content() != before


def test_numbers_and_truth_values_are_texts_as_they_are_written(tmp_path):
    file = tmp_path / "pairs.JSONL"  # the case of a suffix does not matter
    file.write_text('{"question": 1.50, "answer": 2e3}\n{"question": 12, "answer": true}\n')
    store = prepare_pairs(file, tmp_path / "store", task="mine", shares={"train": 1})
    assert rows_of(store) == {"train": {("1.50", "2e3"), ("12", "true")}}


def test_text_of_alternating_lines_has_no_columns(tmp_path):
    file = write(tmp_path, ".txt")
    with pytest.raises(SettingsError, match=r"pairs\.txt is text without columns such as 'kind'"):
        prepare_pairs(file, tmp_path / "store", task="mine", columns=tpt.data.Columns(group="kind"))


@pytest.mark.parametrize(
    ("questions", "reason"),
    [
        ([b"a", b"\xff"], "line 2: question with bytes that are not UTF-8"),
        ([["a"], ["b"]], "line 1: question that is missing or not a text"),
        (["a", None], "line 2: question that is missing or not a text"),
    ],
)
def test_a_fault_of_parquet_is_named_by_its_row(questions, reason, tmp_path):
    table = pa.table({"question": questions, "answer": ["1", "2"]})
    parquet.write_table(table, tmp_path / "pairs.parquet")
    with pytest.raises(CorpusError, match=rf"pairs\.parquet, {reason}"):
        prepare_pairs(tmp_path / "pairs.parquet", tmp_path / "store", task="mine")


def test_millions_of_nulls_are_one_fault(tmp_path):
    questions = pa.concat_arrays([pa.nulls(3_000_000, pa.string()), pa.array(["a"])])
    table = pa.table({"question": questions, "answer": pa.repeat("b", len(questions))})
    parquet.write_table(table, tmp_path / "pairs.parquet")
    options = {"task": "mine", "shares": {"train": 1}}
    with pytest.raises(CorpusError, match="line 1: question that is missing or not a text"):
        prepare_pairs(tmp_path / "pairs.parquet", tmp_path / "store", **options)
    start = time.perf_counter()
    store = prepare_pairs(
        tmp_path / "pairs.parquet", tmp_path / "store", **options, skip_errors=True
    )
    assert time.perf_counter() - start < 10  # row by row it takes a minute
    assert rows_of(store) == {"train": {("a", "b")}}
    assert [(entry["rows"], entry["first_line"]) for entry in store.skipped] == [(3_000_000, 1)]


def test_an_unreadable_parquet_file(tmp_path):
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(CorpusError, match=r"pairs\.parquet: cannot be read"):
        prepare_pairs(tmp_path / "pairs.parquet", tmp_path / "store", task="mine")
    with pytest.raises(CorpusError, match="there is no file or folder"):
        prepare_pairs(tmp_path / "none.csv", tmp_path / "store", task="mine")
    with pytest.raises(CorpusError, match="is not a file of pairs; the formats are"):
        prepare_pairs(__file__, tmp_path / "store", task="mine")
    with pytest.raises(SettingsError, match="cannot be called"):
        prepare_pairs(tmp_path / "pairs.parquet", tmp_path / "store", task="")


@pytest.mark.slow
def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    file = tmp_path / "pairs.csv"
    with file.open("w") as text:
        text.write("question,answer\n")
        text.writelines(f"{number} {'x' * 500},{number}\n" for number in range(600_000))
    code = (
        "import pathlib, re, sys\nfrom tp_transformer.cli import main\nmain(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    arguments = ["data", "prepare", str(file), "--task=mine", f"--out={tmp_path / 'store'}"]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) < 500 * 2**10
