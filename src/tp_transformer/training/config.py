"""The settings of a run: those of all sections, from values and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from tp_transformer import settings
from tp_transformer.data.sampling import FeedConfig
from tp_transformer.errors import SettingsError
from tp_transformer.model.base import ARCHITECTURES
from tp_transformer.model.checkpoint import class_of, model_config
from tp_transformer.model.transformer import Transformer
from tp_transformer.settings import Values
from tp_transformer.training.loop import TrainingConfig
from tp_transformer.training.optim import OptimConfig
from tp_transformer.training.validate import ValidationConfig


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
        settings.refuse_unknown(sections, cls.__dataclass_fields__, "a run")
        for section, fields in sections.items():
            values[section] = {**values.get(section, {}), **fields}
        return run_config(values)


def section_kinds() -> dict[str, tuple[type, ...]]:
    """Return the dataclasses of each section: one, or for the model one of each architecture."""
    kinds = {section: (kind,) for section, kind in get_type_hints(RunConfig).items()}
    models = sorted(ARCHITECTURES.values(), key=lambda model: model is not Transformer)
    return kinds | {"model": tuple(model.config_type for model in models)}  # the default first


def run_config(values: dict[str, Values]) -> RunConfig:
    """Return the settings from the values of their sections."""
    settings.refuse_unknown(values, RunConfig.__dataclass_fields__, "a run")
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
