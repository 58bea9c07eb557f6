"""Generating a store: the same bytes however it is made, and no test question from training."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("mathematics_dataset")

from tp_transformer.cli import main
from tp_transformer.data.mathematics import produce
from tp_transformer.data.mathematics.produce import Chunk, Order, Pieces, question_at, unfinished
from tp_transformer.data.store import open_store
from tp_transformer.errors import SettingsError, StoreError
from tp_transformer.runtime.processes import workers

QUICK = ("numbers__place_value", "arithmetic__add_or_sub")
ORDER = Order(modules=QUICK, count=30, test_count=7, seed=3)
ARGUMENTS = ["--modules", *QUICK, "--count", "30", "--test-count", "7", "--seed", "3"]


def run(out, *arguments, code="", hash_seed="0", **options):
    """`tpt data generate` in a process of its own, after running some code there."""
    program = f"{code}\nfrom tp_transformer.__main__ import run\nif __name__ == '__main__': run()"
    command = [sys.executable, "-c", program, "data", "generate", "--out", str(out), *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, env=environment, **options)


def content(store):
    """What the files of a store hold, by name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(store.iterdir())
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "store"
    produce.produce(ORDER, out, workers(1))
    return out


def test_every_row_is_the_question_at_its_address(made):
    store = open_store(made)
    assert {name: len(split) for name, split in store.items()} == {
        "train": 2 * 3 * 30,
        "interpolate": 2 * 7,
        "extrapolate": 2 * 7,
    }
    for name, split in store.items():
        for segment in split.segments:
            full = f"train-{segment.difficulty}" if name == "train" else name
            for index, row in enumerate(segment.rows):
                expected = question_at(segment.module, full, seed=3, index=index)
                assert (split[row].question, split[row].answer) == (
                    expected.question,
                    expected.answer,
                )


def test_workers_and_string_hashes_do_not_change_a_byte(made, tmp_path):
    process = run(tmp_path / "store", *ARGUMENTS, "--workers", "2", hash_seed="77")
    assert process.wait() == 0
    assert content(tmp_path / "store") == content(made)


def test_a_killed_run_goes_on_where_it_stopped(made, tmp_path):
    """Pieces of few rows and slow questions, killed as soon as two pieces lie there."""
    out = tmp_path / "store"
    folder = tmp_path / ".store.generating"
    slow = """
import time
from tp_transformer.data.mathematics import produce
produce.PIECE_ROWS, produce.CHUNK = 10, 5
plain = produce.generate_chunks
def slowly(*arguments):
    for questions in plain(*arguments):
        time.sleep(0.2)
        yield questions
produce.generate_chunks = slowly
"""
    process = run(out, *ARGUMENTS, "--workers", "1", code=slow, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.arrow"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.arrow")}
    assert kept
    assert not out.exists()
    drawn = []
    result = produce.produce(ORDER, out, workers(1), progress=lambda done, _: drawn.append(done))
    assert drawn[0] > 10  # not from the beginning
    assert len(result["train"]) == 180
    assert content(out) == content(made)
    assert not folder.exists()


def test_another_order_does_not_continue_a_run(tmp_path):
    out = tmp_path / "store"
    with unfinished(out, ORDER):
        pass
    with unfinished(out, replace(ORDER, seed=9)) as folder:  # nothing had been made yet
        Pieces(folder).add("train-easy", QUICK[0], 0, ["1"], ["1"])
    with unfinished(out, replace(ORDER, seed=9)):
        pass
    with pytest.raises(StoreError, match=r"unfinished generation with another seed \(seed 9\)"):
        produce.produce(replace(ORDER, seed=4), out, workers(1))


def test_what_is_asked_for_twice_is_made_once(tmp_path, capsys):
    out = str(tmp_path / "store")
    twice = ["--modules", QUICK[0], QUICK[0], "--splits", "train", "train"]
    main(["data", "generate", "--out", out, *twice, "--difficulties", "easy", "easy",
          "--count", "3", "--workers", "1"])  # fmt: skip
    assert capsys.readouterr().out == f"{out}: train 3\n"
    first = Order(splits=("interpolate", "train-easy"))
    assert first == Order(splits=("train-easy", "interpolate", "interpolate"))


def test_a_store_that_is_there_already_is_not_made_again(made, monkeypatch):
    monkeypatch.setattr(produce, "_generate_missing", None)  # would fail if it were called
    before = content(made)
    produce.produce(ORDER, made, workers(1))
    assert content(made) == before


def test_another_store_is_not_overwritten(tmp_path, capsys):
    out = str(tmp_path / "store")
    given = ["data", "generate", "--out", out, "--modules", QUICK[0], "--splits", "interpolate",
             "--workers", "1", "--count"]  # fmt: skip
    main([*given, "3"])
    before = content(tmp_path / "store")
    with pytest.raises(SystemExit) as stop:
        main([*given, "4"])
    assert stop.value.code == 2
    refused = capsys.readouterr().err
    assert f"{out} is another store: count is 3, not 4; --overwrite replaces it" in refused
    assert content(tmp_path / "store") == before
    assert not list(tmp_path.glob(".store*"))  # nothing was begun
    main([*given, "4", "--overwrite"])
    assert "interpolate 4" in capsys.readouterr().out


def test_two_processes_do_not_make_one_store(tmp_path):
    out = tmp_path / "store"
    code = f"""
from pathlib import Path
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.mathematics.produce import unfinished
from tp_transformer.errors import StoreError
try:
    with unfinished(Path({str(out)!r}), Order()): pass
except StoreError as error:
    print(error)
"""
    with unfinished(out, Order()):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "another process is generating" in done.stdout


def planted(tmp_path, train):
    """Pieces of one test file, and of a training file that holds the given questions."""
    pieces = Pieces(tmp_path)
    files = [
        Chunk(QUICK[0], "train-easy", 1, 0, len(train)),
        Chunk(QUICK[0], "interpolate", 1, 0, 4),
    ]
    tests = [question_at(QUICK[0], "interpolate", seed=1, index=index) for index in range(4)]
    pieces.add("train-easy", QUICK[0], 0, train, ["1"] * len(train))
    halves = (0, tests[:2]), (2, tests[2:])
    for start, half in halves:
        texts = [t.question for t in half], [t.answer for t in half]
        pieces.add("interpolate", QUICK[0], start, *texts)
    return files, pieces


def attempt(number, index=2):
    return question_at(QUICK[0], "interpolate", seed=1, index=index, attempt=number)


@pytest.mark.parametrize("here", [0, 500])
def test_a_test_question_from_training_is_drawn_until_it_is_new(tmp_path, monkeypatch, here):
    monkeypatch.setattr(produce, "DRAWN_HERE", here)
    train = ["other", attempt(0).question, "more", attempt(1).question]
    files, pieces = planted(tmp_path, train)
    redraws = produce.Redraws(files, pieces, 1, workers(1))
    assert redraws.counts() == {f"interpolate/{QUICK[0]}": 1}
    assert redraws.still_in_training() == {}
    changed = []
    start = 0
    for texts in pieces.read(files[1]):
        questions, answers = redraws.apply(files[1], start, texts)
        changed += zip(questions, answers, strict=True)
        start += len(questions)
    expected = [attempt(0, 0), attempt(0, 1), attempt(2), attempt(0, 3)]
    assert changed == [(one.question, one.answer) for one in expected]


def test_what_cannot_be_drawn_anew_is_kept_and_reported(tmp_path):
    train = [attempt(number).question for number in range(produce.MAX_ATTEMPTS)]
    files, pieces = planted(tmp_path, train)
    redraws = produce.Redraws(files, pieces, 1, workers(1))
    assert redraws.counts() == {}
    assert redraws.still_in_training() == {f"interpolate/{QUICK[0]}": 1}
    texts = list(pieces.read(files[1]))[1]
    assert redraws.apply(files[1], 2, texts)[0][0] == attempt(0).question


def test_without_training_there_is_nothing_to_redraw(tmp_path):
    files, pieces = planted(tmp_path, ["x"])
    assert produce.Redraws(files[1:], pieces, 1, workers(1)).counts() == {}


def test_repeats_within_a_modules_training_are_counted(tmp_path):
    pieces = Pieces(tmp_path)
    texts = {
        ("train-easy", "a"): ["12", "21", "12", "3"],
        ("train-hard", "a"): ["3", "33", "12"],
        ("train-easy", "b"): ["12"],
        ("interpolate", "a"): ["12"],
    }
    for (split, module), questions in texts.items():
        pieces.add(split, module, 0, questions[:2], ["1"] * len(questions[:2]))
        if questions[2:]:
            pieces.add(split, module, 2, questions[2:], ["1"] * len(questions[2:]))
    files = [Chunk(module, split, 0, 0, len(rows)) for (split, module), rows in texts.items()]
    found = produce.count_repeats(files, pieces)
    rows = texts["train-easy", "a"] + texts["train-hard", "a"]
    assert found == {"a": sum(count - 1 for count in Counter(rows).values())}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "count must be 1 or more"),
        ({"modules": ("algebra__linear_1d",), "splits": ("extrapolate",)}, "no module of extra"),
        ({"modules": ("algbra__*",)}, "no module matches"),
        ({"splits": ("train",)}, "no split 'train'"),
    ],
)
def test_orders_that_cannot_be_met(fields, message):
    with pytest.raises(SettingsError, match=message):
        Order(**fields)


def test_the_command_says_what_it_made(tmp_path, capsys):
    out = tmp_path / "store"
    main(["data", "generate", "--out", str(out), "--splits", "interpolate", "--workers", "1",
          "--modules", QUICK[0], "--count", "5"])  # fmt: skip
    assert capsys.readouterr().out.startswith(f"{out}: interpolate 5")
    with pytest.raises(SystemExit) as stop:
        main(["data", "generate", "--out", str(out), "--modules", "nothing__*"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert len(open_store(out)["interpolate"]) == 5  # the earlier store is untouched
