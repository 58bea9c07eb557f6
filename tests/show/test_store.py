"""What `tpt data show` draws: counts, lengths and questions, within the terminal's width."""

import io
import json

import pytest
from rich.console import Console

import tp_transformer as tpt
from corpora import make_store, pairs, segments_of
from tp_transformer.data.mathematics.modules import EXTRAPOLATED, KEYS
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.foundation.errors import SettingsError, StoreError
from tp_transformer.show.store import horizontal_bar, render, skipped_lines, sparkline, summarise


@pytest.fixture
def store(tmp_path):
    return tpt.data.open(make_store(tmp_path / "store", segments_of()))


@pytest.fixture
def full(tmp_path):
    """A store with every file of the dataset."""
    segments = {}
    for folder, module in KEYS:
        split, _, difficulty = folder.partition("-")
        long = f"Let {module} be 1. " * 3
        rows = [((long + q)[-150:], a) for q, a in pairs(folder + module, 3)]
        segments[split, module, difficulty or None] = [
            (q.replace("__", " ").replace("_", " "), a) for q, a in rows
        ]
    return tpt.data.open(make_store(tmp_path / "full", segments))


def drawn(store, width, **options):
    console = Console(file=io.StringIO(), width=width)
    render(summarise(store, **options), console)
    return console.file.getvalue()


def test_the_summary_counts(store):
    summary = summarise(store)
    assert json.loads(json.dumps(summary)) == summary
    train = summary["splits"]["train"]
    assert train["rows"] == 15
    assert train["modules"]["arithmetic__mixed"]["rows"] == 10
    assert train["modules"]["arithmetic__mixed"]["easy"] == 7
    assert sum(train["question_lengths"]) == sum(train["answer_lengths"]) == 15
    questions, _ = store["train"].rows(range(15))
    assert train["question_lengths"][len(questions[0])] == [len(q) for q in questions].count(
        len(questions[0])
    )
    assert {sample["area"] for sample in summary["samples"]} == {
        "algebra",
        "arithmetic",
        "measurement",
    }


def test_samples_are_rows_and_follow_the_seed(full):
    samples = summarise(full, samples=3)["samples"]
    assert samples == summarise(full, samples=3)["samples"]
    assert samples != summarise(full, samples=3, seed=1)["samples"]
    assert {sample["area"] for sample in samples} == set(MATHEMATICS.areas)
    for sample in samples:
        split = full[sample["split"]]
        questions, answers = split.rows(split.modules[sample["module"]])
        assert (sample["question"], sample["answer"]) in zip(questions, answers, strict=True)


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits(full, width):
    text = drawn(full, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for folder, module in KEYS:
        if folder == "train-easy":
            assert f"  {module.partition('__')[2]} " in text
    assert f"extrapolate {3 * len(EXTRAPOLATED)}" in text
    assert ("hard" in text) == (width == 120)
    assert "100.0%" in text or "%" in text


def test_one_module(store):
    text = drawn(store, 80, modules="arithmetic__mul*")
    assert "mul" in text
    assert "linear_1d" not in text
    with pytest.raises(SettingsError, match="no module matches 'nonsense'"):
        summarise(store, "nonsense")
    with pytest.raises(StoreError, match="no rows of the modules"):
        summarise(store, "calculus__*")


def test_what_was_left_out_is_shown_as_it_is():
    entry = {"file": "[bold]x.txt", "reason": "empty question", "rows": 2, "first_line": 1003}
    expected = "2 rows left out: [bold]x.txt: empty question, first at line 1,003"
    assert skipped_lines([entry]) == [expected]
    lines = skipped_lines([{**entry, "rows": 0, "first_line": None}] * 30)
    assert lines[0] == "left out: [bold]x.txt: empty question"
    assert lines[-1] == "… and 10 more, all in store.json"


def test_bars():
    assert sparkline([0, 8, 4, 0, 1], 4, 4) == "█▄ ▁"
    assert sparkline([], 160, 3) == "   "
    assert sparkline([0] * 160 + [5], 160, 4) == "   █"
    assert horizontal_bar(1, 4) == "████"
    assert horizontal_bar(0.5, 3) == "█▌"
    assert horizontal_bar(0, 4) == ""
