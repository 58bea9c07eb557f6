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
from tp_transformer.study.reproduce.describe import GPUS, about, hours, launch, render_plan
from tp_transformer.study.reproduce.plan import makespan, plan_reproduction
from tp_transformer.study.reproduce.run import Reproduction
from tp_transformer.study.reproduce.scale import PAPER, Scale, ScaleRow

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
    train(short, data, work.run_folder(transformer, 0), quiet=True)
    work.results(lstm, 1).parent.mkdir()
    work.results(lstm, 1).write_text("scores")
    plan = plan_reproduction(work, seconds=0.0)
    assert [row.steps_left for row in plan.rows] == [(7, 12), (12, 0)]
    assert (plan.n_questions, plan.n_tests, plan.n_scored) == (0, 16, 3)
    first, second = (row.step_seconds for row in plan.rows)
    each = [7 * first, 12 * second, 12 * first]
    at_once = replace(plan, at_once=1)
    assert at_once.training_seconds == pytest.approx(sum(each))
    assert replace(plan, at_once=3).training_seconds == pytest.approx(max(each))


def test_makespan():
    assert makespan([3, 1, 1, 4], 2) == 6  # 3 beside 1 and 1, then 4 after either
    assert makespan([], 2) == 0


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
        assert verb.run == work.run_folder(row, 0)
        assert verb.resolved() == PAPER.config(row, 0)


def test_hours_on_gpus(paper_plan):
    work, plan = paper_plan
    row = plan.rows[3]
    assert row.name == "tp-transformer"
    assert row.steps == 1_000_000
    assert row.flops == pytest.approx(row.batch_size * row.run_flops / row.steps / 1024)
    # 8 GPUs of 312e12 at 40% take an hour for so many operations.
    assert hours(8 * 312e12 * 0.4 * 3600, GPUS["A100"], 0.4) == pytest.approx(1)
    text = rendered(work, plan)
    assert "never measured" in text
    assert f"{sum(row.run_flops for row in plan.rows):.2e}" in text  # all rows


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 s"), (99.4, "99 s"), (101, "1.7 min"), (5400, "90 min")),
        *((34_000, "9.4 h"), (86_400 * 12, "12 days"), (86_400 * 365 * 1234, "1,234 years")),
    ],
)
def test_estimated_times_have_a_unit(seconds, text):
    assert about(seconds) == text


def test_names_of_rows_fit_a_terminal(paper_plan):
    file = io.StringIO()
    render_plan(*paper_plan, Console(file=file, width=80))
    starts = [line.split()[0] for line in file.getvalue().splitlines() if line.strip()]
    assert all(starts.count(row.name) == 2 for row in PAPER.rows)  # in both tables
