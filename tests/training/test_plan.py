"""What a run would take (`tpt train --dry-run` writes nothing), and its commands for GPUs."""

import os
import re
import subprocess

import pytest
import torch

from documents import ROOT, blocks, commands
from runs import command, config, tpt
from tp_transformer import train
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model.flops import config_flops
from tp_transformer.training.plan import Launch, plan_run

GPUS = (ROOT / "docs" / "gpus.md").read_text("utf-8")


def test_a_dry_run_prints_the_plan_and_writes_nothing(capsys, store, tmp_path, monkeypatch):
    defaults = {**plan_run.__kwdefaults__, "seconds": 0.05}
    monkeypatch.setattr(plan_run, "__kwdefaults__", defaults)
    given = [*command(store, tmp_path / "run"), "--dry-run", "--seeds", "1", "2"]
    code, out, err = tpt(capsys, *given)
    assert (code, err) == (0, "")
    assert os.listdir(tmp_path) == []
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in out.splitlines())
    assert lines["parameters"] == "7,872"
    assert lines["steps"] == "30 of 30"
    assert lines["samples"].startswith("240 in batches of 8: 2.11 epochs of 114 questions")
    assert re.match(r"0:\d\d at .* s per step \(.* samples/s\).* on cpu", lines["time"])
    assert re.match(r"[\d.]+ GFLOP per step, [\d.]+ GFLOP/s", lines["operations"])
    assert re.match(r"[\d.]+ (MB|GB)", lines["memory"])
    assert lines["seeds"].startswith("2: ")


def test_the_disk_space_is_that_of_a_real_run(store, tmp_path):
    settings = config(training__steps=9, training__ema=0.9, training__keep_every=4)
    plan = plan_run(settings, store, tmp_path / "run", seconds=0.0)
    train(settings, store, tmp_path / "run", quiet=True)
    last = tmp_path / "run" / "last"
    content = sum((last / f"{name}.safetensors").stat().st_size for name in ("model", "training"))
    assert plan.checkpoint_bytes == pytest.approx(content, rel=0.2)  # headers of small tensors
    assert plan.checkpoint_bytes < content
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) <= plan.n_checkpoints == 2 + 1 + 2


def test_the_plan_of_an_existing_run_is_what_is_left_of_it(store, tmp_path):
    run = tmp_path / "run"
    train(config(training__steps=5), store, run, quiet=True)
    before = sorted((path, path.stat().st_mtime) for path in run.rglob("*"))
    plan = plan_run(config(training__steps=12), None, run, seconds=0.0)
    assert (plan.steps_taken, plan.steps, plan.last_step) == (5, 7, 12)
    assert sorted((path, path.stat().st_mtime) for path in run.rglob("*")) == before


def test_the_operations_are_those_of_the_next_step(store, tmp_path):
    settings = config(training__steps=2)
    plan = plan_run(settings, store, tmp_path / "run", seconds=0.0)
    feed = Feed(
        open_store(store)["train"],
        batch_size=settings.data.batch_size,
        seed=settings.training.seed,
        held_out=settings.validation.count,
    )
    source, target = feed.tokens(0)
    expected = config_flops(settings.model, source.lengths, target.lengths, feed.vocabulary)
    assert plan.operations == expected


def test_a_budget_ends_the_plan(store, tmp_path):
    settings = config(training__steps=None, training__budget="1h")
    plan = plan_run(settings, store, tmp_path / "run", seconds=0.05)
    assert plan.steps == int(3600 / plan.step_seconds)
    assert plan.seconds == pytest.approx(3600, abs=plan.step_seconds)


def test_a_plan_refuses_what_the_run_would(store, tmp_path, undisturbed):
    with pytest.raises(UserError, match="is not a run yet"):
        plan_run(None, store, tmp_path / "run")
    with pytest.raises(SettingsError, match="another architecture"):
        plan_run(config(model__d_ff=64), store, tmp_path / "run", init_from=undisturbed)
    assert os.listdir(tmp_path) == []


def test_threads(capsys, store, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    tpt(capsys, *command(store, tmp_path / "run", training__steps=1), "--threads", "1")
    assert given == [1]


def test_the_commands_are_those_of_the_page():
    typed = {line[2:] for block in blocks("console", GPUS) for line in block.splitlines()}
    run = Launch(config="tp-transformer", data="math", run="runs/tp")
    assert {run.one_process(), run.one_machine()} < typed
    shared = Launch(config="tp-transformer", data="math", run="/shared/runs/tp")
    assert shared.machines() in typed
    assert len(commands(GPUS)) >= 5


def test_the_slurm_script_is_that_of_the_page():
    shared = Launch(config="tp-transformer", data="/shared/math", run="/shared/runs/tp")
    assert blocks("bash", GPUS) == [shared.slurm()]


def test_paths_are_quoted():
    run = Launch(config="tp-transformer", data="my data", run="it's")
    assert "--data 'my data'" in run.one_machine()
    subprocess.run(["bash", "-n"], input=run.slurm(n_machines=4), text=True, check=True)
