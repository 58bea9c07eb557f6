"""The loop: from a batch to a step, again and again."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long and how to train; as it stands, Schlag et al.'s.

    Attributes:
        steps: end after so many steps; absent means no such end
        epochs: end after so many times the training rows
        budget: end after so much time, such as 90s, 45min, 2h or 1d12h
        seed: of the weights, the order of the samples and dropout
        precision: of matrix products; weights and their averages stay in float32
        label_smoothing: share of the target given to all symbols alike
        ema: decay of the running average of the weights that is validated and saved; absent: none
        symbols_per_pass: most symbols that one forward and backward pass holds; the gradients of a
            batch's passes add up
        patience: end after so many validations without improvement; absent means never
        max_bad_steps: end after so many steps in a row whose loss or gradient is not finite
        log_every: steps between two lines of metrics
        checkpoint_minutes: time between two checkpoints
        checkpoint_every: steps between two checkpoints, besides
        keep: checkpoints that stay, the newest ones
    """

    steps: int | None = 1_000_000
    epochs: float | None = None
    budget: str | None = None
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    label_smoothing: float = 0.0
    ema: float | None = None
    symbols_per_pass: int = 16_384
    patience: int | None = None
    max_bad_steps: int = 10
    log_every: int = 20
    checkpoint_minutes: float = 10.0
    checkpoint_every: int | None = None
    keep: int = 2


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation on questions held out of the training split.

    Attributes:
        every: steps between two validations
        count: questions, spread evenly over modules and difficulties
    """

    every: int = 1000
    count: int = 2048
