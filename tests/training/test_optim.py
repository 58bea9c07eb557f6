"""Schedules against closed forms; the optimizer, clipping and the average against plain loops."""

import itertools
import math

import pytest
import torch
from torch import nn

from tp_transformer import build
from tp_transformer.errors import SettingsError
from tp_transformer.training.optim import Ema, OptimConfig, clip, learning_rate, make_optimizer


def rates(config, steps, total):
    return [learning_rate(config, step, (step - 1) / total) for step in steps]


def test_warm_up_is_linear():
    config = OptimConfig(learning_rate=2.0, warmup=4)
    assert rates(config, range(1, 7), 100) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_cosine_follows_progress_down_to_its_end():
    config = OptimConfig(learning_rate=2.0, schedule="cosine", final=0.1)
    assert learning_rate(config, 1, 0.0) == 2.0
    assert learning_rate(config, 7, 0.5) == pytest.approx(2 * 0.55)
    assert learning_rate(config, 7, 0.25) == pytest.approx(2 * (0.1 + 0.9 * (1 + 0.5**0.5) / 2))
    assert learning_rate(config, 7, 1.0) == learning_rate(config, 8, 1.5) == pytest.approx(0.2)


def test_warm_up_and_cosine_multiply_without_a_jump():
    config = OptimConfig(learning_rate=2.0, schedule="cosine", warmup=40)
    found = rates(config, range(1, 101), 100)
    assert max(abs(b - a) for a, b in itertools.pairwise(found)) < 0.06
    assert found[39] == pytest.approx(2 * (1 + math.cos(math.pi * 0.39)) / 2, rel=0.02)


def test_the_inverse_square_root_starts_where_warm_up_ends():
    config = OptimConfig(learning_rate=3.0, schedule="inverse-square-root", warmup=100)
    assert rates(config, (50, 100, 400, 10_000), 1e6) == pytest.approx([1.5, 3.0, 1.5, 0.3])


def test_a_cooldown_follows_progress():
    constant = OptimConfig(learning_rate=2.0, warmup=4)
    cooled = OptimConfig(learning_rate=2.0, warmup=4, cooldown=0.2, final=0.1)
    for step, progress in ((1, 0.0), (3, 0.5), (9, 0.79)):
        assert learning_rate(cooled, step, progress) == learning_rate(constant, step, progress)
    assert learning_rate(cooled, 9, 0.9) == pytest.approx(2 * 0.55)
    assert learning_rate(cooled, 9, 1.0) == learning_rate(cooled, 9, 1.5) == pytest.approx(0.2)
    assert learning_rate(OptimConfig(cooldown=1.0, learning_rate=2.0), 9, 0.25) == 1.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0"),
        ({"betas": (0.9, 1.0)}, "betas must be 0 or more and below 1"),
        ({"eps": -1.0}, "eps must be above 0"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"clip_value": -0.1}, "clip_value must be above 0"),
        ({"weight_decay": 0.1}, "needs the optimizer adamw or muon"),
        ({"adam_rate": 0.7}, "adam_rate needs the optimizer muon"),
        ({"adam_rate": 0.0, "optimizer": "muon"}, "adam_rate must be above 0"),
        ({"optimizer": "moun"}, "did you mean 'muon'"),
        ({"cooldown": 0.1, "schedule": "cosine"}, "cooldown needs the schedule constant"),
        ({"cooldown": 1.1}, "cooldown must be from 0 to 1"),
        ({"weight_decay": -0.1, "optimizer": "adamw"}, "weight_decay must be 0 or more"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"schedule": "inverse-square-root"}, "needs a warmup"),
        ({"final": 1.5}, "final must be from 0 to 1"),
    ],
)
def test_senseless_settings_are_refused(fields, message):
    with pytest.raises(SettingsError, match=message):
        OptimConfig(**fields)


def with_gradients(*values):
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


def test_the_norm_is_that_of_the_whole_gradient():
    parameters = with_gradients([3.0, 0.0], [4.0])
    assert clip(parameters, OptimConfig(clip_norm=1.0)).item() == pytest.approx(5.0)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.6, 0.0, 0.8])
    assert clip(parameters, OptimConfig(clip_norm=2.0)).item() == pytest.approx(1.0)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.6, 0.0, 0.8])


def test_values_are_clipped_one_by_one():
    parameters = with_gradients([3.0, -0.05], [-4.0])
    norm = clip(parameters, OptimConfig(clip_norm=None, clip_value=0.1))
    assert norm.item() == pytest.approx(math.sqrt(25.0025))
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.1, -0.05, -0.1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_shows_what_is_not_finite(value):
    for config in (OptimConfig(), OptimConfig(clip_norm=None, clip_value=0.1)):
        assert not clip(with_gradients([1.0, value], [2.0]), config).isfinite()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_matrices_that_are_not_embeddings_decay(name):
    model = build("tp-transformer-tiny", n_layers=1)
    config = OptimConfig(optimizer=name, weight_decay=0.5, learning_rate=0.1)
    optimizer = make_optimizer(model, config)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and name != "embedding.symbols.weight"
        assert torch.allclose(parameter, before[name] * (0.95 if decays else 1.0)), name


def test_the_average_is_an_average():
    model = nn.Linear(2, 1)
    ema = Ema(model, decay=0.6)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(1, 12):
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter)
        ema.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        expected = [
            decay * average + (1 - decay) * parameter.detach()
            for average, parameter in zip(expected, model.parameters(), strict=True)
        ]
    for average, ours in zip(expected, ema.weights.values(), strict=True):
        assert torch.allclose(average, ours)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with ema.in_place():
        assert all(map(torch.allclose, model.parameters(), expected))
    assert all(map(torch.equal, model.parameters(), weights))
