"""`tpt reproduce --dry-run`: what a reproduction would take, and nothing is written."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import runs
import tp_transformer as tpt
from commands import check_torchrun
from tp_transformer import cli, train
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.study import reproduction_plan
from tp_transformer.study.reproduce import Reproduction
from tp_transformer.study.reproduction_plan import (
    _row_plan,
    launch,
    makespan,
    plan_lines,
    steps_left,
)
from tp_transformer.study.scales import PAPER, Scale, ScaleRow

MODULES = ("numbers__gcd", "numbers__place_value")
TOY = Scale(
    name="toy",
    rows=(
        ScaleRow(name="transformer", preset="transformer-tiny"),
        ScaleRow(name="lstm-saxton", preset="lstm-saxton", settings={"model.d_hidden": 8}),
    ),
    modules=MODULES,
    seeds=(0, 1),
    settings={
        **{name: value for name, value in runs.SETTINGS.items() if not name.startswith("model.")},
        "training.steps": 12,
    },
    order=Order(modules=MODULES, count=50, test_count=7),
)


def test_a_plan_writes_nothing(tmp_path):
    threads = torch.get_num_threads()
    work = Reproduction(scale=TOY, out=tmp_path / "out")
    text = "\n".join(plan_lines(work, seconds=0.02))
    assert os.listdir(tmp_path) == []
    assert torch.get_num_threads() == threads
    assert "4 of 4 left" in text
    assert f"{2 * 3 * 50 + 3 * 7} questions to generate" in text  # place values are extrapolated
    assert "band        not measured yet" in text
    assert "measured on a sample of generated questions" in text
    assert all(f"\n{row.name}:\nparameters" in text for row in TOY.rows)
    assert text.count("steps       12 of 12\n") == 2
    assert "torchrun" not in text


def test_the_plan_of_what_is_left(tmp_path):
    data = runs.make_store(tmp_path / "data", interpolate=(8, 8))
    work = Reproduction(scale=TOY, out=tmp_path / "out", data=data)
    transformer, lstm = TOY.rows
    short = TOY.config(transformer, 0, {"training.steps": 5})
    train(short, data, work.run(transformer, 0).folder, quiet=True)
    work.run(lstm, 1).results.parent.mkdir()
    work.run(lstm, 1).results.write_text("scores")
    assert [steps_left(run) for run in work.runs()] == [7, 12, 12, 0]
    text = "\n".join(plan_lines(work, seconds=0.0))
    assert "3 of 4 left" in text
    assert f"data        {data}" in text


def test_a_large_model_is_measured_in_small_batches(tmp_path, monkeypatch):
    data = runs.make_store(tmp_path / "data")
    work = Reproduction(scale=TOY, out=tmp_path / "out", data=data)
    full = _row_plan(work, TOY.rows[0], tpt.data.open(data), 0.0)
    monkeypatch.setattr(reproduction_plan, "_LARGEST_STEP", 2 * full.n_parameters)
    small = _row_plan(work, TOY.rows[0], tpt.data.open(data), 0.0)
    assert full.batch_size == small.batch_size == 8
    assert small.operations == pytest.approx(full.operations, rel=0.5)  # other questions
    assert small.steps == 12


def test_makespan():
    assert makespan([3, 1, 1, 4], 2) == 6  # 3 beside 1 and 1, then 4 after either
    assert makespan([], 2) == 0


def test_the_paper_scale_has_command_lines_for_gpus(tmp_path):
    """With a small model in place of each that is measured."""
    data = runs.make_store(tmp_path / "data", interpolate=(8, 8))
    small = {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2}
    rows = tuple(
        replace(row, settings={"model.d_hidden": 8} if row.name == "lstm-saxton" else small)
        for row in PAPER.rows
    )
    work = Reproduction(scale=replace(PAPER, rows=rows), out=Path("out"), data=data)
    lines = "\n".join(plan_lines(work, seconds=0.0)).splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("torchrun ")]
    assert len(commands) == 2 * len(PAPER.rows)
    for _, *arguments in commands:
        check_torchrun(arguments)
    (again,) = (shlex.split(line) for line in lines if line.startswith("tpt reproduce"))
    verb = cli.parse(again[1:])
    assert (verb.scale, verb.out, verb.data) == ("paper", work.out, work.data)
    start = lines.index("#!/bin/bash")
    script = "\n".join(lines[start : lines.index('wait "$training"', start + 20) + 1])
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_runs_on_gpus_are_those_that_the_reproduction_goes_on_with(tmp_path):
    """The folder and the settings of a command line are those of the same row."""
    work = Reproduction(scale=PAPER, out=tmp_path / "out", data=tmp_path / "data")
    for row in PAPER.rows:
        verb = cli.parse(shlex.split(launch(work, row).one_process())[1:])
        assert verb.run == work.run(row, 0).folder
        assert verb.resolved() == PAPER.config(row, 0)
