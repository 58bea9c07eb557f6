"""Checkpoints: found again when the newest is damaged, never lost to a full disk."""

import errno
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

import tp_transformer
from runs import config, tensors
from tp_transformer import train
from tp_transformer.errors import CheckpointError, UserError
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import newest, read


@pytest.fixture
def run(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_a_model_folder_with_the_averaged_weights(run):
    assert names(run / "checkpoints") == ["step-00000027", "step-00000030"]
    assert os.readlink(run / "last") == "checkpoints/step-00000030"
    training = load_file(run / "last" / "training.safetensors")
    for name, parameter in tp_transformer.load(run / "last").named_parameters():
        assert not torch.equal(parameter, training[f"weight.{name}"])
        assert torch.allclose(parameter, training[f"weight.{name}"], atol=0.2)
        assert training[f"step.{name}"].item() == 30


def test_the_best_model_has_the_averaged_weights(store, tmp_path):
    run = tmp_path / "run"
    train(config(training__ema=0.9, training__steps=10), store, run, quiet=True)
    last = tensors(run / "last")  # of the same step as the only validation
    assert all(torch.equal(tensor, last[name]) for name, tensor in tensors(run / "best").items())


def truncate(file):
    file.write_bytes(file.read_bytes()[:-10])


def garble(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, garble, lambda file: file.unlink()])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "state.json", "config.json"]
)
def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(run, name, damage):
    damage(run / "checkpoints" / "step-00000030" / name)
    said = []
    found = newest(run, said.append)
    assert found.path.name == "step-00000027"
    assert found.state.step == 27
    assert len(said) == 1
    assert "step-00000030" in said[0]


def test_a_damaged_end_is_computed_again(run, undisturbed, store):
    garble(run / "checkpoints" / "step-00000030" / "model.safetensors")
    outcome = train(None, None, run, quiet=True)
    assert outcome.step == 30
    assert "skipping a checkpoint" in (run / "log.txt").read_text()
    ours, theirs = tensors(run / "last"), tensors(undisturbed / "last")
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_nothing_is_begun_over_checkpoints_that_are_all_damaged(run):
    for path in (run / "checkpoints").iterdir():
        truncate(path / "training.safetensors")
    before = names(run / "checkpoints")
    with pytest.raises(CheckpointError, match=r"all checkpoints .* are damaged"):
        train(None, None, run, quiet=True)
    assert names(run / "checkpoints") == before


def test_a_checkpoint_of_another_model_is_refused(run):
    saved = read(run / "checkpoints" / "step-00000030")
    small = tp_transformer.build("tp-transformer-tiny")
    optimizer = torch.optim.Adam(small.parameters())
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.restore(saved.tensors, small, optimizer, None)
    model = tp_transformer.load(run / "best")
    optimizer = torch.optim.Adam(model.parameters())
    for kind in ("weight", "exp_avg"):
        wrong = dict(saved.tensors)
        wrong = {name: t for name, t in wrong.items() if not name.startswith("average.")}
        wrong[f"{kind}.embedding.symbols.weight"] = torch.zeros(3, 2)
        with pytest.raises(CheckpointError, match=r"shape \(3, 2\), not \(72, 16\)"):
            checkpoint.restore(wrong, model, optimizer, None)


def test_a_full_disk_keeps_the_last_checkpoint(store, tmp_path, monkeypatch):
    run = tmp_path / "run"
    plain, n_calls = checkpoint.save_file, 0

    def full(tensors, path, **options):
        nonlocal n_calls
        n_calls += 1
        if n_calls > 2:
            path.write_bytes(b"the beginning of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(tensors, path, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError) as error:
        train(config(), store, run, quiet=True)
    assert "step-00000009: No space left on device" in str(error.value)
    assert "step-00000006" in str(error.value).split(";")[1]
    assert names(run / "checkpoints") == ["step-00000003", "step-00000006"]
    assert os.readlink(run / "last") == "checkpoints/step-00000006"
    assert newest(run, print).state.step == 6
    monkeypatch.setattr(checkpoint, "save_file", plain)
    assert train(None, None, run, quiet=True).step == 30


def test_a_broken_removal_leaves_no_half_checkpoint(store, tmp_path, monkeypatch):
    run = tmp_path / "run"

    plain = shutil.rmtree

    def broken(path, **options):
        if ".removed" in str(path):
            raise OSError(errno.EIO, "broken")
        plain(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", broken)
        with pytest.raises(UserError, match="broken"):
            train(config(training__keep=1), store, run, quiet=True)
    assert newest(run, pytest.fail).state.step == 6
    assert train(None, None, run, quiet=True).step == 30
    assert names(run / "checkpoints") == ["step-00000030"]
