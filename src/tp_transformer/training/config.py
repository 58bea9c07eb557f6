"""The settings of a run: those of all sections, from values and back; its limits.

The sections `data`, `optim` and `validation` are described where they are used.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from tp_transformer import settings
from tp_transformer.data.sampling import FeedConfig
from tp_transformer.errors import SettingsError
from tp_transformer.model.base import ARCHITECTURES
from tp_transformer.model.checkpoint import class_of, model_config
from tp_transformer.model.transformer import Transformer
from tp_transformer.ranges import (
    OpenShare,
    Positive,
    PositiveInt,
    Seed,
    ShareBelowOne,
    check_fields,
)
from tp_transformer.settings import Values
from tp_transformer.training.optim import OptimConfig
from tp_transformer.training.validate import ValidationConfig


def seconds(text: str) -> float:
    """Convert a duration such as `90s`, `45min`, `2h` or `1d12h` to seconds."""
    units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
    number = r"(\d+(?:\.\d*)?)"
    match = re.fullmatch("".join(rf"(?:{number}\s*{unit}\s*)?" for unit in units), text.strip())
    total = sum(
        float(amount or 0) * size
        for amount, size in zip(match.groups() if match else (), units.values(), strict=False)
    )
    if not 0 < total < math.inf:
        raise SettingsError(
            f"{text!r} is not a positive duration; examples: 90s, 45min, 2h, 1d12h "
            "(units d, h, min, s)"
        )
    return total


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Duration, precision and checkpoints of training; the defaults are those of Schlag et al.

    Attributes:
        steps: maximum number of steps; absent: no limit
        epochs: maximum number of passes over the training rows; absent: no limit
        budget: maximum training time, such as 90s, 45min, 2h or 1d12h; absent: no limit
        seed: of the initial weights, the order of the samples and dropout
        precision: of matrix products; weights and optimizer state stay in float32, and so do
            products where bfloat16 would be emulated
        label_smoothing: probability mass distributed evenly over all tokens
        ema: decay of the moving average of the weights that is validated and saved; absent: none
        symbols_per_pass: maximum number of tokens in a micro-batch; gradients are accumulated over
            the micro-batches of a batch
        patience: number of validations without improvement before the run stops; absent: no limit
        max_bad_steps: number of consecutive steps with a loss or gradient that is not finite before
            the run stops
        log_every: number of steps between lines of metrics
        checkpoint_minutes: time between checkpoints
        checkpoint_every: number of steps between additional checkpoints
        keep: number of newest checkpoints to keep
        keep_every: number of steps between checkpoints that are kept permanently; absent: none
    """

    steps: PositiveInt | None = 1_000_000
    epochs: Positive | None = None
    budget: str | None = None
    seed: Seed = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    label_smoothing: ShareBelowOne = 0.0
    ema: OpenShare | None = None
    symbols_per_pass: PositiveInt = 16_384
    patience: PositiveInt | None = None
    max_bad_steps: PositiveInt = 10
    log_every: PositiveInt = 20
    checkpoint_minutes: Positive = 10.0
    checkpoint_every: PositiveInt | None = None
    keep: PositiveInt = 2
    keep_every: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps is None and self.epochs is None and self.budget is None:
            raise SettingsError("a run needs an end: set steps, epochs or budget")
        if self.budget is not None:
            seconds(self.budget)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run; None for a limit that is absent."""

    steps: int | None
    epochs: float | None
    budget: float | None  # seconds
    batch_size: int
    n_rows: int  # of an epoch

    @classmethod
    def of(cls, training: TrainingConfig, batch_size: int, n_rows: int) -> "Limits":
        """Return the limits of a run with batches of a size and a number of training rows."""
        budget = None if training.budget is None else seconds(training.budget)
        return cls(
            steps=training.steps,
            epochs=training.epochs,
            budget=budget,
            batch_size=batch_size,
            n_rows=n_rows,
        )

    def progress(self, step: int, elapsed: float) -> float:
        """Return the completed share of the run: the largest of the shares of its limits."""
        shares = (
            step / self.steps if self.steps else 0.0,
            step * self.batch_size / self.n_rows / self.epochs if self.epochs else 0.0,
            elapsed / self.budget if self.budget else 0.0,
        )
        return min(max(shares), 1.0)

    @property
    def last_step(self) -> int | None:
        """The number of steps after which the run ends, unless its time is up before."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(math.ceil(self.epochs * self.n_rows / self.batch_size))
        return min(ends, default=None)

    def time_left(self, step: int, elapsed: float, steps_per_second: float | None) -> float | None:
        """Return the seconds until the first limit is reached; None if nothing is known yet."""
        left = [] if self.budget is None else [self.budget - elapsed]
        if steps_per_second and self.last_step is not None:
            left.append((self.last_step - step) / steps_per_second)
        return max(min(left), 0.0) if left else None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, by section; `model` has those of its architecture."""

    model: Any
    data: FeedConfig = field(default_factory=FeedConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    @classmethod
    def of(cls, name_or_file: str | Path, **sections: Mapping[str, Any]) -> "RunConfig":
        """Return the settings of a preset or a YAML file, with some of them overridden.

        Examples:
            >>> RunConfig.of("tp-transformer-tiny", model={"n_layers": 1}, training={"steps": 100})
        """
        values = settings.run_values(name_or_file, {}, section_kinds())
        settings.require_known(sections, cls.__dataclass_fields__, "a run")
        return run_config(settings.override(values, sections, section_kinds()))


def section_kinds() -> dict[str, tuple[type, ...]]:
    """Return the dataclasses of each section: one, or for the model one of each architecture."""
    kinds = {section: (kind,) for section, kind in get_type_hints(RunConfig).items()}
    models = sorted(ARCHITECTURES.values(), key=lambda model: model is not Transformer)
    return kinds | {"model": tuple(model.config_type for model in models)}  # the default first


def run_config(values: dict[str, Values]) -> RunConfig:
    """Return the settings from the values of their sections."""
    settings.require_known(values, RunConfig.__dataclass_fields__, "a run")
    if "model" not in values:
        raise SettingsError("a run needs the section 'model'")
    hints = get_type_hints(RunConfig)
    del hints["model"]
    stages = {n: settings.to_dataclass(kind, values.get(n, {}), n) for n, kind in hints.items()}
    return RunConfig(model=model_config(values["model"]), **stages)


def config_values(config: RunConfig) -> dict[str, Values]:
    """Return the sections of values from which `run_config` makes the same settings."""
    values: dict[str, Values] = settings.to_values(config)
    return {**values, "model": class_of(config.model).config_values(config.model)}


def check_changes(run: Path, recorded: RunConfig, config: RunConfig) -> None:
    """Raise if settings differ that cannot be changed while a run lasts."""
    old, new = config_values(recorded), config_values(config)
    changed = settings.changed(old, new)
    if all(_is_changeable(section, key, old, new) for section, key in changed):
        return
    differences = settings.differences(old, new)
    listed = "; ".join(text.replace(", not ", f" in {run}, not ", 1) for text in differences)
    raise SettingsError(
        f"{listed}; resume with the settings of the run, or use a new run (only training.steps, "
        "optim.cooldown, a larger training.budget and training.epochs can be changed)"
    )


def _is_changeable(section: str, key: str, old: dict[str, Values], new: dict[str, Values]) -> bool:
    if (section, key) in {("training", "steps"), ("optim", "cooldown")}:
        return True
    if section != "training" or key not in {"budget", "epochs"}:
        return False
    before, after = old[section][key], new[section][key]
    if before is None or after is None:  # a limit that is absent is larger than any other
        return after is None
    return seconds(after) > seconds(before) if key == "budget" else bool(after > before)
