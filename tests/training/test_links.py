"""RUN/best and RUN/last: there at every moment once there, and right after every start."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

import tp_transformer
from runs import assert_same_run, before_each_operation, config, tensors
from tp_transformer import train
from tp_transformer.model.checkpoint import model_path
from tp_transformer.runtime.files import replace_link, resolve_link
from tp_transformer.training import checkpoint, loop
from tp_transformer.training.checkpoint import _read_state
from tp_transformer.training.config import TrainingConfig


@pytest.fixture
def run(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)


def test_a_reader_finds_both_at_every_moment(store, tmp_path, monkeypatch):
    """Looks before each operation: so between any two of them. Every validation is a new best."""
    run = tmp_path / "run"
    monkeypatch.setattr("tp_transformer.training.loop._is_better", lambda *_: True)
    seen = {"best": [], "last": []}

    def look(*_):
        for name, found in seen.items():
            folder = resolve_link(run / name)
            if folder is None:
                assert not found, f"{name} has gone"
            elif not found or found[-1] != folder.name:
                found.append(folder.name)
                tp_transformer.load(run / name)
        if seen["best"]:
            assert model_path(run) == resolve_link(run / "best")
            assert _read_state(run / "last")[0].best is not None

    settings = config(training__steps=5, training__keep=1, validation__every=2)
    with before_each_operation(look):
        train(settings, store, run, quiet=True)
    look()
    assert seen["best"] == [f"step-0000000{step}" for step in (2, 4, 5)]
    assert seen["last"] == [f"step-0000000{step}" for step in (2, 3, 4, 5)]
    # The validation after step 5 was due only because of the end: an extended run needs the other.
    assert sorted(os.listdir(run / "best-models")) == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize("name", ["last", "best"])
@pytest.mark.parametrize("damage", ["older", "absent", "dangling"])
def test_links_are_right_after_every_start(run, name, damage):
    right = os.readlink(run / name)
    (run / name).unlink()
    if damage == "older":
        older = (run / right).with_name("step-00000027" if name == "last" else "step-00000001")
        if name == "best":
            shutil.copytree(run / right, older)
        (run / name).symlink_to(older.relative_to(run))
    elif damage == "dangling":
        (run / name).symlink_to("nowhere")
    assert train(None, None, run, quiet=True).was_finished
    assert os.readlink(run / name) == right


def test_a_copy_that_followed_the_links_is_taken_on(undisturbed, tmp_path):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    assert not (run / "best").is_symlink()
    assert train(None, None, run, quiet=True).was_finished
    assert_same_run(run, undisturbed)
    assert (run / "best").is_symlink()
    assert (run / "last").is_symlink()


def test_a_damaged_newest_checkpoint_gives_back_the_best_before_it(store, tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr("tp_transformer.training.loop._is_better", lambda *_: True)
    settings = config(training__steps=4, training__checkpoint_every=None, validation__every=2)
    train(settings, store, run, quiet=True)
    before = tensors(run / "best-models" / "step-00000002")
    (run / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"")
    seen = []

    def look(*_):
        seen.append(os.readlink(run / "best"))

    monkeypatch.setattr(loop.Loop, "run", lambda *_: look())
    train(None, None, run, quiet=True)
    assert seen == ["best-models/step-00000002"]
    assert all(torch.equal(tensor, before[key]) for key, tensor in tensors(run / "best").items())


def test_without_symbolic_links_names_are_files(store, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    run = tmp_path / "run"
    train(config(training__steps=4, validation__every=2), store, run, quiet=True)
    assert (run / "last").read_text() == "checkpoints/step-00000004"
    assert (run / "best").is_file()
    assert resolve_link(run / "best").parent == run / "best-models"
    assert tp_transformer.load(run).n_parameters
    assert tp_transformer.load(run / "last").n_parameters
    assert train(None, None, run, quiet=True).was_finished


def test_a_name_points_nowhere_but_below_itself(tmp_path):
    for folder in ("outside", "run/folder", "run/other"):
        (tmp_path / folder).mkdir(parents=True)
    name = tmp_path / "run" / "name"
    for text in ("../outside", str(tmp_path / "outside"), "", ".", "absent", "\0", "a" * 5000):
        name.write_text(text)
        assert resolve_link(name) is None
    name.write_bytes(b"\xff")
    assert resolve_link(name) is None
    replace_link(name, tmp_path / "run" / "folder")
    assert resolve_link(name) == tmp_path / "run" / "folder"
    replace_link(name, tmp_path / "run" / "other")
    assert resolve_link(name) == tmp_path / "run" / "other"
    loop = tmp_path / "run" / "loop"
    loop.symlink_to("loop")
    assert resolve_link(loop) is None


def test_milestones_stay(store, tmp_path):
    run = tmp_path / "run"
    settings = config(training__keep_every=4, training__steps=11, training__keep=1)
    train(settings, store, run, quiet=True)
    steps = sorted(int(name[-8:]) for name in os.listdir(run / "checkpoints"))
    assert steps == [4, 8, 11]
    assert tp_transformer.load(run / "checkpoints" / "step-00000004")
    with pytest.raises(tp_transformer.UserError, match="keep_every must be 1 or more"):
        TrainingConfig(keep_every=0)


def test_a_milestone_that_had_to_wait_stays_too(tmp_path):
    for step in (3, 5, 6, 8, 9, 12):
        (tmp_path / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    checkpoint.prune(tmp_path, checkpoint.State(step=12), keep=2, keep_every=4)
    steps = sorted(int(name[-8:]) for name in os.listdir(tmp_path / "checkpoints"))
    assert steps == [5, 8, 9, 12]


def stop_at(step, settings, store, run, monkeypatch):
    """Train until a signal arrives in a step, counted from 1."""
    plain, n_calls = loop.clip, 0

    def interrupted(*arguments):
        nonlocal n_calls
        n_calls += 1
        if n_calls == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "clip", interrupted)
        assert train(settings, store, run, quiet=True).signal == signal.SIGTERM


@pytest.mark.parametrize(("step", "end"), [(4, 7), (4, 4)])
def test_a_stop_before_a_validation_has_it_done_once(store, tmp_path, monkeypatch, step, end):
    """Stopped by a signal in the step before a validation, in the middle or at the end of a run."""
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    settings = config(training__steps=end, validation__every=4)
    train(settings, store, undisturbed, quiet=True)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    stop_at(step, settings, store, run, monkeypatch)
    state, _ = _read_state(run / "last")
    assert state.step == step
    assert state.validated is None
    with monkeypatch.context() as patch:  # it is recorded, but not yet in the checkpoint
        patch.setattr(checkpoint, "update", killed)
        with pytest.raises(Killed):
            train(None, None, run, quiet=True)
    assert train(None, None, run, quiet=True).step == end
    assert train(None, None, run, quiet=True).was_finished
    assert_same_run(run, undisturbed)


def test_a_checkpoint_because_of_a_signal_gives_way_to_the_next(store, tmp_path, monkeypatch):
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    settings = config(training__steps=8)
    train(settings, store, undisturbed, quiet=True)
    stop_at(7, settings, store, run, monkeypatch)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000006", "step-00000007"]
    train(None, None, run, quiet=True)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000006", "step-00000008"]
    assert_same_run(run, undisturbed)
