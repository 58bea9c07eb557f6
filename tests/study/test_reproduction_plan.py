"""`tpt reproduce --dry-run`: what a reproduction would take, and nothing is written."""

import io
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import runs
from commands import check_torchrun
from tp_transformer import cli, train
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.study.reproduce import Reproduction
from tp_transformer.study.reproduction_plan import (
    duration_text,
    launch,
    plan_reproduction,
    render_plan,
    training_seconds,
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


def rendered(work, plan):
    file = io.StringIO()
    render_plan(work, plan, Console(file=file, width=300))
    return file.getvalue()


def test_a_plan_writes_nothing(tmp_path):
    threads = torch.get_num_threads()
    work = Reproduction(scale=TOY, out=tmp_path / "out")
    plan = plan_reproduction(work, seconds=0.02)
    assert os.listdir(tmp_path) == []
    assert torch.get_num_threads() == threads
    assert plan.n_questions == 2 * 3 * 50 + 3 * 7  # place values are extrapolated, too
    assert plan.n_tests == 3 * 7
    assert all(row.steps_left == (12, 12) for row in plan.rows)
    text = rendered(work, plan)
    assert "4 of 4 left" in text
    assert "band     not measured yet" in text
    assert "torchrun" not in text


def test_the_plan_of_what_is_left(tmp_path):
    data = runs.make_store(tmp_path / "data", interpolate=(8, 8))
    work = Reproduction(scale=TOY, out=tmp_path / "out", data=data)
    transformer, lstm = TOY.rows
    short = TOY.config(transformer, 0, {"training.steps": 5})
    train(short, data, work.run(transformer, 0).folder, quiet=True)
    work.run(lstm, 1).results.parent.mkdir()
    work.run(lstm, 1).results.write_text("scores")
    plan = plan_reproduction(work, seconds=0.0)
    assert [row.steps_left for row in plan.rows] == [(7, 12), (12, 0)]
    assert (plan.n_questions, plan.n_tests) == (0, 16)
    assert (plan.seconds["generate questions"], plan.seconds["score"] > 0) == (0, True)
    first, second = (row.training.step_seconds for row in plan.rows)
    each = [7 * first, 12 * second, 12 * first]
    assert training_seconds(plan.rows, 1) == pytest.approx(sum(each))
    assert training_seconds(plan.rows, 3) == pytest.approx(max(each))
    assert training_seconds(plan.rows, 2) == pytest.approx(max(each[1], each[0] + each[2]))


@pytest.fixture(scope="module")
def paper_plan(tmp_path_factory):
    """The plan of the paper's scale, with a small model in place of each that is measured."""
    data = runs.make_store(tmp_path_factory.mktemp("paper") / "data", interpolate=(8, 8))
    small = {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2}
    rows = tuple(
        replace(row, settings={"model.d_hidden": 8} if row.name == "lstm-saxton" else small)
        for row in PAPER.rows
    )
    work = Reproduction(scale=replace(PAPER, rows=rows), out=Path("out"), data=data)
    return work, plan_reproduction(work, seconds=0.0)


def test_the_paper_scale_has_command_lines_for_gpus(paper_plan):
    work, plan = paper_plan
    lines = rendered(work, plan).splitlines()
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


def test_the_operations_are_those_of_whole_batches(paper_plan):
    _, plan = paper_plan
    row = plan.rows[3]
    assert (row.name, row.steps, row.training.batch_size) == ("tp-transformer", 1_000_000, 1024)
    assert 0 < row.flops / 1024 < 1e11


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 s"), (99.4, "99 s"), (101, "1.7 min"), (5400, "90 min")),
        *((34_000, "9.4 h"), (86_400 * 12, "12 days"), (86_400 * 365 * 1234, "1,234 years")),
    ],
)
def test_estimated_times_have_a_unit(seconds, text):
    assert duration_text(seconds) == text


def test_names_of_rows_fit_a_terminal(paper_plan):
    file = io.StringIO()
    render_plan(*paper_plan, Console(file=file, width=80))
    starts = [line.split()[0] for line in file.getvalue().splitlines() if line.strip()]
    assert all(starts.count(row.name) == 1 for row in PAPER.rows)
