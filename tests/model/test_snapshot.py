"""Changes of a model between two calls are noticed, and change the answers as without kernels."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import tp_transformer as tpt
from tp_transformer.foundation import native
from tp_transformer.model.snapshot import Snapshot

QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "1"]


def model_of():
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny").eval()


def _replace_tensor(part):
    part.weight = nn.Parameter(-part.weight.detach())


def _replace_data(part):
    part.weight.data = -part.weight.data


def _view(part):
    part.weight.data = part.weight.data.T


SETTINGS = {
    "a tensor": lambda model: _replace_tensor(model.decoder[1].feed_forward.expand),
    "a tensor of the same numbers": lambda model: setattr(
        model.decoder[1].output_norm,
        "weight",
        nn.Parameter(model.decoder[1].output_norm.weight.detach().clone()),
    ),
    "the data of a tensor": lambda model: _replace_data(model.decoder[1].feed_forward.expand),
    "strides": lambda model: _view(model.decoder[1].self_attention.out_proj),
    "a hook": lambda model: model.decoder[0].register_forward_hook(lambda *inputs: None),
    "a method": lambda model: setattr(model.decoder[0].feed_forward, "forward", len),
    "a submodule": lambda model: setattr(model.decoder[0], "dropout", nn.Dropout(0.5)),
    "a number": lambda model: setattr(model.decoder[0].output_norm, "eps", 1e-3),
    "a mode": lambda model: model.decoder[0].dropout.train(),
    "a class": lambda model: setattr(model.decoder[0], "__class__", type("Own", (nn.Module,), {})),
    "positions": lambda model: setattr(
        model.embedding, "_positions", model.embedding._positions.clone()
    ),
    "an array": lambda model: setattr(model.decoder[0], "array", np.zeros(2)),
    "a type": lambda model: model.double(),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_a_snapshot_notices_a_change(change):
    model = model_of()
    modules = [model.embedding, *model.decoder]
    model.decoder[0].array = np.zeros(2)
    tensors = [*model.decoder.parameters()]
    snapshot = Snapshot(modules, tensors)
    with torch.no_grad():
        model.decoder[0].output_norm.weight.mul_(2)  # in place
    assert snapshot.holds(modules)
    assert not snapshot.holds(modules[:-1])
    SETTINGS[change](model)
    assert not snapshot.holds(modules)


CHANGES = {
    "in place": lambda part: part.weight.mul_(-3),
    "a tensor": _replace_tensor,
    "the data of a tensor": _replace_data,
    "a hook": lambda part: part.register_forward_hook(lambda *inputs: -3 * inputs[-1]),
    "a method": lambda part: setattr(
        part, "forward", lambda state: torch.ones(*state.shape[:-1], part.out_features)
    ),
}
PARTS = {
    "the embedding": lambda model: model.embedding.role_proj,
    "the encoder": lambda model: model.encoder[1].self_attention.out_proj,
    "keys and values": lambda model: model.decoder[0].cross_attention.memory_proj,
    "the decoder": lambda model: model.decoder[1].self_attention.out_proj,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_change_between_calls_has_its_effect(monkeypatch, change, part):
    model = model_of()
    ids = torch.from_numpy(model.vocabulary.encode(QUESTIONS[:1]).padded(model.vocabulary.pad))
    previous = torch.tensor([5])

    def logits():
        return model.step(previous, model.begin(model.encode(ids), 2))

    before = logits()
    CHANGES[change](PARTS[part](model))
    after = logits()
    assert not torch.allclose(before, after, atol=1e-3)
    monkeypatch.setattr(native, "library", lambda: None)
    torch.testing.assert_close(after, logits(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_stacks_are_checked_once_and_not_copied():
    """A copy has other weights, and addresses cannot be pickled."""
    if native.library() is None:
        pytest.skip("the kernels are not compiled")
    model = model_of()
    answers = model.solve(QUESTIONS, max_length=5)
    stacks = dict(model._known_stacks)
    assert set(stacks) == {"encoder", "decoder"}
    assert model.solve(QUESTIONS, max_length=5) == answers
    assert all(model._known_stacks[name] is stack for name, stack in stacks.items())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not any(copied._known_stacks.values())
        assert copied.solve(QUESTIONS, max_length=5) == answers
