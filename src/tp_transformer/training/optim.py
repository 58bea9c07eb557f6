"""The optimizer, and schedules as pure functions of the step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tp_transformer.errors import SettingsError
from tp_transformer.ranges import (
    Count,
    NonNegative,
    Positive,
    Share,
    ShareBelowOne,
    check_fields,
)
from tp_transformer.registry import Registry
from tp_transformer.training.muon import Blocks, Muon, matrix_blocks

MakeOptimizer = Callable[[nn.Module, "OptimConfig"], torch.optim.Optimizer]
OPTIMIZERS: Registry[MakeOptimizer] = Registry("optimizer")
# Settings without an effect on an optimizer, and the optimizers that they need.
_UNUSED = {
    "adam": {"weight_decay": "adamw or muon", "adam_rate": "muon"},
    "adamw": {"adam_rate": "muon"},
}


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Optimizer, clipping and learning-rate schedule; the defaults are those of Schlag et al.

    Attributes:
        optimizer: a name in `OPTIMIZERS`: adam; adamw, which adds weight decay; muon, which is Muon
            for the matrices of linear layers and AdamW for all other parameters
        learning_rate: after warmup, before the schedule decreases it
        adam_rate: with muon, the learning rate of the other parameters, relative to learning_rate
        betas: decay rates of Adam's averages of the gradient and of its square
        eps: added to the denominator of a step of Adam, for numerical stability
        weight_decay: of matrices, with adamw and muon; biases, norms and embeddings do not decay
        clip_norm: maximum norm of the gradient; absent: no limit
        clip_value: maximum absolute value of a gradient element; absent: no limit
        schedule: of the learning rate after warmup
        warmup: number of steps in which the learning rate increases linearly from 0
        cooldown: share of the run, at its end, in which a constant learning rate decreases linearly
        final: factor of the learning rate at the end of a cosine schedule or a cooldown
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
        for name, optimizers in _UNUSED.get(self.optimizer, {}).items():
            if getattr(self, name) != getattr(OptimConfig, name):
                raise SettingsError(f"{name} needs the optimizer {optimizers}")
        if self.cooldown and self.schedule != "constant":
            raise SettingsError("cooldown needs the schedule constant")
        if self.schedule == "inverse-square-root" and self.warmup < 1:
            raise SettingsError("the schedule inverse-square-root needs a warmup of 1 or more")

    @staticmethod
    def inherited(fields: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a preset that still apply after changes, as of the optimizer."""
        unused = _UNUSED.get(changes.get("optimizer", ""), {})
        return {name: value for name, value in fields.items() if name not in unused}


def learning_rate(config: OptimConfig, step: int, progress: float) -> float:
    """Return the learning rate of a step, counted from 1, at a `progress` of the run from 0 to 1.

    The cosine schedule and the cooldown depend on the progress of the run, not on the step, so that
    a run with a time budget also ends at the minimum.
    """
    warmth = min(step / config.warmup, 1.0) if config.warmup else 1.0
    return config.learning_rate * warmth * _scheduled(config, step, progress)


def _scheduled(config: OptimConfig, step: int, progress: float) -> float:
    """Return the factor of the schedule, without warmup."""
    if config.schedule == "cosine":
        height = (1 + math.cos(math.pi * min(progress, 1.0))) / 2
        return config.final + (1 - config.final) * height
    if config.schedule == "inverse-square-root":
        return math.sqrt(config.warmup / max(step, config.warmup))
    if config.cooldown:
        height = min((1 - min(progress, 1.0)) / config.cooldown, 1.0)
        return config.final + (1 - config.final) * height
    return 1.0


def follows_progress(config: OptimConfig, progress: float) -> bool:
    """Whether the learning rates up to this progress of a run depend on the length of the run."""
    if config.schedule == "cosine":
        return progress > 0
    return progress > 1 - config.cooldown


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return the optimizer that a configuration names.

    The learning rate of a parameter group is that of the schedule times the `rate` of the group, if
    it has one.
    """
    return OPTIMIZERS[config.optimizer](model, config)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of each parameter group, multiplied by the `rate` of the group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)


@OPTIMIZERS.register("adam")
def adam(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Adam, fused into one kernel where the device has it."""
    return _fused(torch.optim.Adam, _groups(model, config), model, config)


@OPTIMIZERS.register("adamw")
def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, fused into one kernel where the device has it."""
    return _fused(torch.optim.AdamW, _groups(model, config), model, config)


@OPTIMIZERS.register("muon")
def muon(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Muon for the matrices of linear layers, one per head in attention; AdamW for the rest.

    The rest are embeddings, biases, norms, and matrices that are not those of linear layers: the
    LSTM's cell, those of bindings.
    """
    blocks = matrix_blocks(model)
    decayed, plain = _groups(model, config)
    matrices: dict[Blocks, list[nn.Parameter]] = {}
    others: list[nn.Parameter] = []
    for parameter in decayed["params"]:
        is_matrix = parameter in blocks
        (matrices.setdefault(blocks[parameter], []) if is_matrix else others).append(parameter)
    groups = [
        *({**decayed, "params": each, "blocks": blocks_of} for blocks_of, each in matrices.items()),
        {**decayed, "params": others, "rate": config.adam_rate},
        {**plain, "rate": config.adam_rate},
    ]
    return _fused(Muon, groups, model, config)


def _fused(
    kind: Callable[..., torch.optim.Optimizer],
    groups: Iterable[dict[str, Any]],
    model: nn.Module,
    config: OptimConfig,
) -> torch.optim.Optimizer:
    return kind(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=next(model.parameters()).device.type in {"cpu", "cuda", "mps"},
    )


def _groups(model: nn.Module, config: OptimConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two groups: the matrices that are not embeddings, and the other parameters."""
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
    return (
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    )


def clip(parameters: Iterable[nn.Parameter], config: OptimConfig) -> Tensor:
    """Clip the gradients in place and return their norm before clipping.

    If any element is not finite, neither is the norm. With both limits the norm is clipped first;
    clipping values after that cannot make it larger.
    """
    learned = list(parameters)
    norm = clip_grad_norm_(learned, math.inf if config.clip_norm is None else config.clip_norm)
    if config.clip_value is not None:
        clip_grad_value_(learned, config.clip_value)
    return norm


class Ema:
    """Exponential moving average of the weights of a model.

    The decay at step n is at most (1 + n) / (10 + n): with a constant decay of 0.9999, the average
    after 5000 steps would still consist mostly of the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._model = model

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after a step."""
        decay = min(self.decay, (1 + step) / (10 + step))
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(list(self.weights.values()), [p.detach() for p in self._model.parameters()], 0)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the averaged weights into the model for the duration of the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.data, self.weights[name] = self.weights[name], parameter.data
