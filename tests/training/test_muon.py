"""Muon: orthogonal directions against a decomposition, updates against plain loops, resumption."""

import json
import shutil

import pytest
import torch
from torch import nn

import tp_transformer
from runs import SETTINGS, assert_same_run, config, records
from tp_transformer import train
from tp_transformer.ops import library
from tp_transformer.settings import run_values
from tp_transformer.training import muon as muon_file
from tp_transformer.training.config import run_config, section_kinds
from tp_transformer.training.muon import ELEMENT_SIZE, MOMENTUM, Muon, matrix_blocks, orthogonalise
from tp_transformer.training.optim import (
    OptimConfig,
    make_optimizer,
    set_learning_rate,
)

RECIPE = {"optimizer": "muon", "learning_rate": 0.01, "adam_rate": 0.7, "betas": (0.9, 0.99)}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def muon_for(group, **options):
    settings = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "fused": True, **options}
    return Muon([group], **settings)


@pytest.mark.parametrize("shape", [(8, 8), (8, 12), (4, 40), (40, 4), (1, 9), (9, 1), (1, 1)])
def test_directions_are_the_polar_factor_up_to_the_singular_values(shape):
    matrices = random(5, *shape)
    left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
    found = left.mT @ orthogonalise(matrices) @ right.mT  # diagonal if the directions are equal
    values = found.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found, torch.diag_embed(values), atol=1e-4, rtol=0)
    is_large = sizes >= matrices.norm(dim=(1, 2), keepdim=True)[..., 0] / 300
    assert is_large.float().mean() > 0.9
    assert values[is_large].min() > 0.68
    assert values[is_large].max() < 1.21


def test_matrices_of_any_size_and_dtype():
    matrices = random(3, 6, 20)
    expected = orthogonalise(matrices)
    for size in (1e-4, 1e8):
        torch.testing.assert_close(orthogonalise(matrices * size), expected, atol=2e-3, rtol=0)
    assert orthogonalise(matrices.double()).dtype == torch.float64


@pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled")
@pytest.mark.parametrize(("n_matrices", "n_rows"), [(7, 16), (3, 128), (1, 8), (2, 40), (0, 8)])
def test_the_kernel_computes_the_same_factors(monkeypatch, n_matrices, n_rows):
    x = random(n_matrices, n_rows, 4 * n_rows)
    square = x @ x.mT / (4 * n_rows**2)
    found = muon_file._total_factor(square)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(muon_file._total_factor(square), found)
    monkeypatch.setattr(library, "load", lambda: None)
    torch.testing.assert_close(found, muon_file._total_factor(square), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("blocks", [(1, 1), (4, 1), (1, 2), (2, 3)])
def test_blocks_are_matrices_of_their_own(blocks):
    fused = nn.Parameter(random(8, 12))
    before = fused.detach().clone()
    rows, columns = 8 // blocks[0], 12 // blocks[1]
    corners = [(r, c) for r in range(0, 8, rows) for c in range(0, 12, columns)]
    parts = [nn.Parameter(before[r : r + rows, c : c + columns].clone()) for r, c in corners]
    whole = muon_for({"params": [fused], "blocks": blocks})
    apart = [muon_for({"params": [part], "blocks": (1, 1)}) for part in parts]
    for seed in (1, 2):
        fused.grad = random(8, 12, seed=seed)
        whole.step()
        for (r, c), part, optimizer in zip(corners, parts, apart, strict=True):
            part.grad = fused.grad[r : r + rows, c : c + columns].clone()
            optimizer.step()
    assert (fused - before).abs().min() > 0
    for (r, c), part in zip(corners, parts, strict=True):
        torch.testing.assert_close(fused[r : r + rows, c : c + columns], part)


def test_updates_against_a_plain_loop():
    """Two matrices of one shape and one of another, with weight decay, in one group."""
    parameters = [nn.Parameter(random(*shape, seed=9)) for shape in ((4, 6), (4, 6), (5, 5))]
    expected = [parameter.detach().clone() for parameter in parameters]
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    group = {"params": parameters, "blocks": (1, 1), "weight_decay": 0.5}
    optimizer = muon_for(group)
    for step in range(3):
        for number, parameter in enumerate(parameters):
            gradient = random(*parameter.shape, seed=10 * step + number)
            parameter.grad = gradient.clone()
            averages[number] = MOMENTUM * averages[number] + (1 - MOMENTUM) * gradient
            nesterov = MOMENTUM * averages[number] + (1 - MOMENTUM) * gradient
            direction = orthogonalise(nesterov[None])[0] * ELEMENT_SIZE * max(gradient.shape) ** 0.5
            expected[number] = expected[number] * (1 - 0.1 * 0.5) - 0.1 * direction
        optimizer.step()
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


def test_a_zero_gradient_moves_nothing():
    parameter = nn.Parameter(random(4, 6))
    before = parameter.detach().clone()
    parameter.grad = torch.zeros(4, 6)
    muon_for({"params": [parameter], "blocks": (2, 1)}).step()
    assert torch.equal(parameter, before)


def test_parameters_without_a_gradient_are_left_alone():
    model = tp_transformer.build("tp-transformer-tiny", n_layers=1)
    optimizer = make_optimizer(model, OptimConfig(**RECIPE, weight_decay=0.1))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if name.startswith("decoder"):
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != name.startswith("decoder"), name
    assert len(optimizer.state) == sum(name.startswith("decoder") for name in before)


def test_matrices_divide_by_head_and_the_rest_is_adams():
    model = tp_transformer.build("tp-transformer-tiny", n_layers=1, n_heads=2)
    optimizer = make_optimizer(model, OptimConfig(**RECIPE))
    set_learning_rate(optimizer, 0.5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {names[p]: group for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == set(names.values())
    blocks = {name: group["blocks"] for name, group in found.items() if group["blocks"]}
    assert blocks == {
        "embedding.role_proj.weight": (1, 1),
        "encoder.0.self_attention.in_proj.weight": (8, 1),
        "encoder.0.self_attention.out_proj.weight": (1, 2),
        "encoder.0.feed_forward.expand.weight": (1, 1),
        "encoder.0.feed_forward.contract.weight": (1, 1),
        "decoder.0.self_attention.in_proj.weight": (8, 1),
        "decoder.0.self_attention.out_proj.weight": (1, 2),
        "decoder.0.cross_attention.in_proj.weight": (4, 1),
        "decoder.0.cross_attention.memory_proj.weight": (4, 1),
        "decoder.0.cross_attention.out_proj.weight": (1, 2),
        "decoder.0.feed_forward.expand.weight": (1, 1),
        "decoder.0.feed_forward.contract.weight": (1, 1),
    }
    for name, group in found.items():
        assert group["lr"] == (0.5 if name in blocks else 0.35), name


@pytest.mark.parametrize("fused", [True, False])
def test_groups_without_blocks_are_adamws(fused):
    ours, theirs = (nn.Parameter(random(7)) for _ in range(2))
    optimizer = muon_for({"params": [ours], "weight_decay": 0.1}, fused=fused)
    adamw = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1, fused=fused)
    for seed in range(3):
        ours.grad = random(7, seed=seed)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        adamw.step()
    assert torch.equal(ours, theirs)


def test_a_weight_that_is_also_an_embedding_is_adams():
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "output": nn.Linear(4, 5)})
    model["output"].weight = model["embedding"].weight
    optimizer = make_optimizer(model, OptimConfig(**RECIPE))
    assert [group["blocks"] for group in optimizer.param_groups] == [None]


def test_a_map_that_heads_do_not_divide_is_one_matrix():
    attention = tp_transformer.TPMultiheadAttention(8, 2)
    attention.gate = nn.Linear(8, 6)
    blocks = matrix_blocks(attention)
    assert blocks[attention.gate.weight] == (1, 1)
    assert blocks[attention.role_proj.weight] == (2, 1)
    with pytest.raises(ValueError, match=r"\(6, 8\) does not divide into 4 by 1"):
        muon_for({"params": [attention.gate.weight], "blocks": (4, 1)})


def test_a_role_map_of_another_size_is_one_matrix_per_head():
    options = {"binding": "dictionary", "n_roles": 6}
    model = tp_transformer.build("tp-transformer-tiny", **options)
    attention = model.decoder[0].cross_attention
    blocks = matrix_blocks(model)
    assert attention.role_proj.weight.shape == (4 * 6, 64)
    assert blocks[attention.role_proj.weight] == (4, 1)
    assert blocks[attention.in_proj.weight] == (4, 1)


RUN = {
    "optim.optimizer": "muon",
    "optim.adam_rate": 0.7,
    "optim.weight_decay": 0.1,
    "optim.schedule": "constant",
    "optim.cooldown": 0.5,
    "training.ema": 0.9,
    "training.steps": 12,
    "training.keep": 9,
    "validation.every": 6,
}


def lstm_config():
    """The LSTM with the settings of the other runs, except those that only a Transformer has."""
    shared = {name: value for name, value in SETTINGS.items() if not name.startswith("model.")}
    changed = {**shared, **RUN, "model.d_hidden": 16}
    given = {name: json.dumps(value) for name, value in changed.items()}
    return run_config(run_values("lstm-saxton", given, section_kinds()))


@pytest.mark.parametrize("model", ["transformer", "lstm"])
def test_a_run_resumes_exactly(store, tmp_path, model):
    """Over several passes of a batch, with clipping, weight decay, an average and a cooldown."""
    settings = lstm_config() if model == "lstm" else config(**RUN)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(settings, store, whole, quiet=True)
    lines = [line for line in records(whole) if line["kind"] == "train"]
    assert lines[-1]["loss"] < lines[0]["loss"]
    shutil.copytree(whole, resumed, symlinks=True)
    for step in (6, 9, 12):
        shutil.rmtree(resumed / "checkpoints" / f"step-{step:08}")
    assert train(None, None, resumed, quiet=True).step == 12
    assert_same_run(resumed, whole)
