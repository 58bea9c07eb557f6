"""The optimizer, and schedules as pure functions of the step."""

from dataclasses import dataclass
from typing import Literal

from tp_transformer.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How gradients become steps; as it stands, Schlag et al.'s.

    Attributes:
        optimizer: adam, or adamw, which adds weight decay
        learning_rate: after warm-up, before the schedule lowers it
        betas: decay of the averages of the gradient and of its square
        eps: keeps a step finite where gradients vanish
        weight_decay: of matrices, by adamw; biases, norms and embeddings are left alone
        clip_norm: largest norm of the whole gradient; absent means any
        clip_value: largest element of the gradient; absent means any
        schedule: what the learning rate does after warm-up
        warmup: steps in which the learning rate grows from nothing
        final: share of the learning rate that a cosine schedule ends with
    """

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.995)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 0.1
    clip_value: float | None = None
    schedule: Literal["constant", "cosine", "inverse-square-root"] = "constant"
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.weight_decay and self.optimizer != "adamw":
            raise SettingsError("weight_decay needs the optimizer adamw")
