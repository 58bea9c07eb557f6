"""Several seeds: a run each, resumed and extended as a whole."""

import json
import os
import signal

import pytest

from runs import assert_same_run, command, config, finish, start, tpt, wait_for
from tp_transformer import train
from tp_transformer.errors import FolderError
from tp_transformer.settings import read
from tp_transformer.training.run import train_seeds

SHORT = {"training__steps": 6}


def test_each_seed_is_a_run_of_its_own(capsys, store, tmp_path):
    runs = tmp_path / "runs"
    code, out, _ = tpt(capsys, *command(store, runs, **SHORT), "--seeds", "0", "3")
    assert code == 0
    assert sorted(os.listdir(runs)) == ["seed-0", "seed-3"]
    assert f"{runs / 'seed-3'} is finished, after step 6" in out
    assert f"next: tpt evaluate --model {runs} --data {store} --out runs.json" in out
    alone = tmp_path / "alone"
    train(config(**SHORT, training__seed=3), store, alone, quiet=True)
    assert_same_run(runs / "seed-3", alone)
    code, out, _ = tpt(capsys, "train", "--run", str(runs))  # all that there are
    assert code == 0
    assert out.count("was finished already") == 2
    # A further seed takes after the others; all are extended together.
    code, out, _ = tpt(capsys, "train", "--run", str(runs), "--seeds", "0", "3", "4")
    assert (code, out.count("was finished already"), out.count("is finished")) == (0, 2, 1)
    assert json.loads((runs / "seed-4" / "run.json").read_text())["seed"] == 4
    code, out, _ = tpt(capsys, "train", "--run", str(runs), "--training.steps=7")
    assert (code, out.count("is finished, after step 7")) == (0, 3)
    seeds = [read(runs / f"seed-{seed}" / "config.yaml")["training"]["seed"] for seed in (0, 3, 4)]
    assert seeds == [0, 3, 4]


def test_an_interrupted_command_goes_on_with_the_seed_it_was_at(store, tmp_path):
    runs, log = tmp_path / "runs", tmp_path / "log"
    arguments = [*command(store, runs, training__steps=20), "--seeds", "0", "1"]
    process = start(arguments, log)
    wait_for(lambda: (runs / "seed-0" / "last").exists())
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == [143]
    assert not (runs / "seed-1").exists()
    assert finish(start(arguments, log)) == [0]
    assert "resuming from step" in (runs / "seed-0" / "log.txt").read_text()
    for seed in (0, 1):
        state = json.loads((runs / f"seed-{seed}" / "last" / "state.json").read_text())
        assert state["step"] == 20


def test_the_run_of_one_seed_is_not_a_folder_for_several(store, tmp_path, undisturbed):
    with pytest.raises(FolderError, match="is the run of one seed"):
        train_seeds(config(), store, undisturbed, [0, 1])


@pytest.mark.parametrize(("seeds", "message"), [(["-1"], "--seeds"), (["x"], "--seeds")])
def test_mistakes_end_in_one_line(capsys, store, tmp_path, seeds, message):
    code, _, err = tpt(capsys, *command(store, tmp_path / "runs"), "--seeds", *seeds)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
