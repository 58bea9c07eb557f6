"""A run that is killed, however and whenever, ends exactly as if nothing had happened."""

import os
import random
import shutil
import signal
import time

import pytest

import tp_transformer
from runs import (
    assert_same_run,
    before_each_operation,
    command,
    config,
    finish,
    records,
    start,
    wait_for,
)
from tp_transformer.runtime.signals import NUMBERS, DeferredSignals
from tp_transformer.training import checkpoint
from tp_transformer.training.run import train


def unfinished(run):
    """Checkpoints that are being written or removed at this moment."""
    folder = run / "checkpoints"
    return [name for name in os.listdir(folder) if name[0] == "."] if folder.is_dir() else []


def reached(run):
    """The step of the newest checkpoint."""
    last = run / "last"
    return int(os.readlink(last)[-8:]) if last.is_symlink() else 0


def kill_until_done(arguments, run, log, n_kills, n_steps):
    """Kill the run again and again on its way; every other time in the middle of a checkpoint.

    Returns how many of the kills left an unfinished checkpoint behind.
    """
    chance = random.Random(n_kills)
    n_in_writing = 0
    for number in range(n_kills):
        process = start(arguments, log)
        step = number * (n_steps - 6) // n_kills
        while process.is_alive() and reached(run) <= step:
            time.sleep(0.001)
        if number % 2:
            time.sleep(chance.uniform(0.0, 0.05))
        else:
            while process.is_alive() and not unfinished(run):
                pass
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, log.read_text()
        n_in_writing += bool(unfinished(run))
    assert finish(start(arguments, log)) == [0]
    return n_in_writing


@pytest.mark.parametrize(
    ("n_kills", "n_steps"), [(3, 30), pytest.param(20, 150, marks=pytest.mark.slow)]
)
def test_killed_runs_end_like_undisturbed_ones(store, undisturbed, tmp_path, n_kills, n_steps):
    changed = {"training__ema": 0.9, "training__steps": n_steps}
    if n_steps != 30:
        undisturbed = tmp_path / "undisturbed"
        assert finish(start(command(store, undisturbed, **changed), tmp_path / "log")) == [0]
    run = tmp_path / "killed"
    arguments = command(store, run, **changed)
    n_in_writing = kill_until_done(arguments, run, tmp_path / "log", n_kills, n_steps)
    assert n_in_writing >= max(1, n_kills // 4)
    assert_same_run(run, undisturbed)
    assert not unfinished(run)
    assert tp_transformer.load(run).solve(["What is the units digit of 12?"])


# Two checkpoints, of which the first is removed, and two best models.
SHORT = {
    "training__steps": 2,
    "training__keep": 1,
    "training__checkpoint_every": 1,
    "validation__every": 1,
    "validation__count": 3,
    "optim__learning_rate": 0.001,
}


def kill_at_operation(store, run, log, text, number):
    """Kill a short run before an operation on files; whether it was not finished by then.

    What there was for readers must still be there, and the run must go on.
    """
    arguments = command(store, run, **SHORT)
    process = start(arguments, log, kill_at=(text, number))
    process.join()
    if process.exitcode == 0:
        return False
    assert process.exitcode == -signal.SIGKILL, log.read_text()
    for name in ("best", "last"):
        assert not (run / name).is_symlink() or (run / name / "model.safetensors").exists()
    if (run / "last").exists():
        tp_transformer.load(run)
    assert finish(start(arguments, log)) == [0], log.read_text()
    assert not unfinished(run)
    return True


def test_a_kill_between_a_checkpoint_and_its_links_is_made_good(store, tmp_path):
    """Before either link of the last checkpoint changes, and before the one before is removed."""
    undisturbed, operations = tmp_path / "undisturbed" / "run", []
    with before_each_operation(lambda _, arguments: operations.append(arguments)):
        train(config(**SHORT), store, undisturbed, quiet=True)
    operations = [arguments for arguments in operations if "/run/" in str(arguments)]
    linking = [
        number
        for number, arguments in enumerate(operations)
        if len(arguments) > 1 and str(arguments[1]).endswith(("/run/best", "/run/last"))
    ]
    for number in (*linking[-2:], linking[-1] + 1):
        run = tmp_path / str(number) / "run"
        assert kill_at_operation(store, run, tmp_path / "log", "/run/", number)
        assert_same_run(run, undisturbed)


@pytest.mark.slow
def test_a_kill_at_any_operation_is_made_good(store, tmp_path):
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    train(config(**SHORT), store, undisturbed, quiet=True)
    number = 0
    while kill_at_operation(store, run, tmp_path / "log", "", number):
        assert_same_run(run, undisturbed)
        shutil.rmtree(run)
        number += 1
    assert number > 50


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_says_where_and_loses_nothing(store, undisturbed, tmp_path, number, code):
    run, log = tmp_path / "run", tmp_path / "log"
    arguments = command(store, run, training__ema=0.9)
    process = start(arguments, log)
    wait_for(lambda: (run / "metrics.jsonl").exists() and records(run))
    os.kill(process.pid, number)
    assert finish(process) == [code]
    assert number.name in log.read_text()
    last = (run / "last").resolve()
    assert str(last.relative_to(run.resolve())) in log.read_text()
    assert "Traceback" not in log.read_text()
    step = int(last.name.removeprefix("step-"))
    assert 0 < step < 30
    assert finish(start(arguments, log)) == [0]
    assert f"resuming from step {step}" in (run / "log.txt").read_text()
    assert_same_run(run, undisturbed)


def test_a_second_interruption_ends_at_once(monkeypatch):
    handlers = [signal.getsignal(number) for number in NUMBERS]
    with DeferredSignals() as signals:
        assert signals.received is None
        for _ in range(2):  # one Ctrl-C, told by the terminal and by torchrun
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        monkeypatch.setattr("tp_transformer.runtime.signals.SECONDS_OF_ONE_SIGNAL", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with DeferredSignals() as signals:
        for _ in range(2):  # whoever sends this again is only impatient; SIGKILL is at hand
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
    assert [signal.getsignal(number) for number in NUMBERS] == handlers


def test_a_signal_during_the_last_save_does_not_cut_it_short(store, tmp_path, monkeypatch):
    plain = checkpoint._write

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        plain(*arguments)

    monkeypatch.setattr(checkpoint, "_write", interrupted)
    run = tmp_path / "run"
    settings = config(training__steps=2, training__checkpoint_every=None, validation__count=0)
    assert train(settings, store, run, quiet=True).signal is None
    assert os.listdir(run / "checkpoints") == ["step-00000002"]
    assert (run / "log.txt").read_text().rstrip().endswith("finished after step 2")
