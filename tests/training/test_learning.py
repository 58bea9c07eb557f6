"""Models learn: those of the first commands of docs/training.md, and of each built-in task."""

import os
import resource
import subprocess
import sys

import pytest

import tp_transformer as tpt
from documents import ROOT, blocks, commands
from tp_transformer.scoring.results import Results

TEXT = (ROOT / "docs" / "training.md").read_text("utf-8")


@pytest.mark.slow
def test_the_documented_commands_train_a_model_that_answers(tmp_path, monkeypatch):
    """On questions never seen in training, found by search and not by teacher forcing."""
    monkeypatch.chdir(tmp_path)
    block = next(block for block in blocks("console", TEXT) if "--run runs/digits" in block)
    # One thread: two that wait for each other are slow where other tests run meanwhile.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for program, *arguments in commands(f"```console\n{block}```"):
        assert program == "tpt"
        command = [sys.executable, "-m", "tp_transformer", *arguments]
        subprocess.run(command, check=True, env=environment)
    assert exact_match("runs/digits", "digits") > 0.95
    code = next(code for code in blocks("python", TEXT) if "runs/digits" in code)
    names: dict = {}
    exec(code, names)  # noqa: S102
    assert names["model"].n_parameters == tpt.build("tp-transformer-tiny").n_parameters


def exact_match(model, store):
    """The share of test questions that a model answers."""
    split = tpt.data.open(store)["interpolate"]
    questions, answers = split.rows(range(len(split)))
    found = tpt.load(model).solve(questions)
    return sum(map(str.__eq__, found, answers)) / len(answers)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["scan", "recall", "lookup", "quotients"])
def test_the_preset_learns_the_task(task, tmp_path):
    environment = {"OMP_NUM_THREADS": "2", **os.environ}  # one, where other work runs beside it

    def tpt(*arguments):
        command = [sys.executable, "-m", "tp_transformer", *map(str, arguments)]
        subprocess.run(command, check=True, env=environment, cwd=tmp_path)

    tpt("data", "generate", "--task", task, "--out", "data")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    tpt("train", "--config", task, "--data", "data", "--run", "run")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert used < 2 * 60 * 15  # 15 minutes of two cores, whatever else the machine does
    tpt(
        "evaluate", "--model", "run/last", "--data", "data", "--splits", "test", "--out", "out.json"
    )
    accuracy, _ = Results.read(tmp_path / "out.json").splits["test"].average
    assert accuracy > 0.95
