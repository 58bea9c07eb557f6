"""The optimizer, and schedules as pure functions of the step."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import (
    Count,
    NonNegative,
    Positive,
    Share,
    ShareBelowOne,
    check_fields,
)
from tp_transformer.foundation.registry import Registry
from tp_transformer.training.muon import Blocks, Muon, matrix_blocks

MakeOptimizer = Callable[[nn.Module, "OptimConfig"], torch.optim.Optimizer]
OPTIMIZERS: Registry[MakeOptimizer] = Registry("optimizer")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How gradients become steps; as it stands, Schlag et al.'s.

    Attributes:
        optimizer: a name in `OPTIMIZERS`: adam; adamw, which adds weight decay; muon, which is Muon
            for the matrices of linear layers and AdamW for all other parameters
        learning_rate: after warm-up, before the schedule lowers it
        adam_rate: with muon, the learning rate of the other parameters, relative to learning_rate
        betas: Adam's decay of the averages of the gradient and of its square
        eps: keeps a step of Adam finite where gradients vanish
        weight_decay: of matrices, by adamw and muon; biases, norms and embeddings do not decay
        clip_norm: largest norm of the whole gradient; absent means any
        clip_value: largest element of the gradient; absent means any
        schedule: what the learning rate does after warm-up
        warmup: steps in which the learning rate grows from nothing
        cooldown: share of the run, at its end, in which a constant learning rate falls linearly
        final: share of the learning rate that a cosine schedule or a cooldown ends with
    """

    optimizer: str = "adam"
    learning_rate: Positive = 1e-4
    adam_rate: Positive = 1.0
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.995)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    clip_norm: Positive | None = 0.1
    clip_value: Positive | None = None
    schedule: Literal["constant", "cosine", "inverse-square-root"] = "constant"
    warmup: Count = 0
    cooldown: Share = 0.0
    final: Share = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        OPTIMIZERS[self.optimizer]  # raises if there is none of that name
        if self.weight_decay and self.optimizer == "adam":
            raise SettingsError("weight_decay needs the optimizer adamw or muon")
        if self.adam_rate != 1 and self.optimizer in {"adam", "adamw"}:
            raise SettingsError("adam_rate needs the optimizer muon")
        if self.cooldown and self.schedule != "constant":
            raise SettingsError("cooldown needs the schedule constant")
        if self.schedule == "inverse-square-root" and self.warmup < 1:
            raise SettingsError("the schedule inverse-square-root needs a warmup of 1 or more")


def learning_rate(config: OptimConfig, step: int, progress: float) -> float:
    """The learning rate of a step, counted from 1, when `progress` of the run (0 to 1) is done.

    Cosine and cooldown follow the progress of the whole run, not the step, so that a run with a
    budget of time ends with the lowest learning rate, too.
    """
    warmth = min(step / config.warmup, 1.0) if config.warmup else 1.0
    return config.learning_rate * warmth * _scheduled(config, step, progress)


def _scheduled(config: OptimConfig, step: int, progress: float) -> float:
    """What the schedule leaves of the learning rate, warm-up apart."""
    if config.schedule == "cosine":
        height = (1 + math.cos(math.pi * min(progress, 1.0))) / 2
        return config.final + (1 - config.final) * height
    if config.schedule == "inverse-square-root":
        return math.sqrt(config.warmup / max(step, config.warmup))
    if config.cooldown:
        height = min((1 - min(progress, 1.0)) / config.cooldown, 1.0)
        return config.final + (1 - config.final) * height
    return 1.0


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that a configuration names.

    The learning rate of a parameter group is the schedule's times the group's own `rate`, if it has
    one: an optimizer may give its groups different learning rates.
    """
    return OPTIMIZERS[config.optimizer](model, config)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, each by its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)


@OPTIMIZERS.register("adam")
def adam(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Adam, fused into one kernel where the device has it."""
    return _adam(torch.optim.Adam, model, config)


@OPTIMIZERS.register("adamw")
def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, fused into one kernel where the device has it."""
    return _adam(torch.optim.AdamW, model, config)


@OPTIMIZERS.register("muon")
def muon(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Muon for the matrices of linear layers, one per head in attention; AdamW for the rest.

    The rest are embeddings, biases, norms, and matrices that are not those of linear layers: the
    LSTM's cell, the bindings' own.
    """
    blocks = matrix_blocks(model)
    decayed, plain = _decayed_and_plain(model)
    matrices: dict[Blocks, list[nn.Parameter]] = {}
    others: list[nn.Parameter] = []
    for parameter in decayed:
        is_matrix = parameter in blocks
        (matrices.setdefault(blocks[parameter], []) if is_matrix else others).append(parameter)
    decay, rate = {"weight_decay": config.weight_decay}, {"rate": config.adam_rate}
    groups = [
        *({"params": found, "blocks": key, **decay} for key, found in matrices.items()),
        {"params": others, **rate, **decay},
        {"params": plain, **rate},
    ]
    return Muon(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=_can_fuse(model),
    )


def _adam(
    kind: type[torch.optim.Adam], model: nn.Module, config: OptimConfig
) -> torch.optim.Optimizer:
    decayed, plain = _decayed_and_plain(model)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return kind(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=_can_fuse(model),
    )


def _can_fuse(model: nn.Module) -> bool:
    return next(model.parameters()).device.type in {"cpu", "cuda", "mps"}


def _decayed_and_plain(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices that are not embeddings, and all the rest: biases, norms, embeddings."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
        (decayed if is_matrix else plain).append(parameter)
    return decayed, plain


def clip(parameters: Iterable[nn.Parameter], config: OptimConfig) -> Tensor:
    """Clip the gradients in place, and return their norm as it was before.

    If any element is not finite, neither is the norm. With both limits the norm is clipped first;
    clipping values after that cannot make it larger.
    """
    learned = list(parameters)
    norm = clip_grad_norm_(learned, math.inf if config.clip_norm is None else config.clip_norm)
    if config.clip_value is not None:
        clip_grad_value_(learned, config.clip_value)
    return norm


class Ema:
    """A running average of a model's weights.

    Its decay grows to the one asked for, as (1 + n) / (10 + n) at the n-th step: a fixed decay of
    0.9999 would still be mostly the random weights of the beginning after 5000 steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._model = model

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after a step."""
        decay = min(self.decay, (1 + step) / (10 + step))
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(list(self.weights.values()), list(self._parameters()), 0)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averaged weights meanwhile."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.data, self.weights[name] = self.weights[name], parameter.data

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter.detach() for parameter in self._model.parameters())
