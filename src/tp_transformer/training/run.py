"""A run: its settings, and the folder that explains it."""

from dataclasses import dataclass, field

from tp_transformer.data.feed import FeedConfig
from tp_transformer.model.family import ModelConfig
from tp_transformer.training.loop import TrainingConfig, ValidationConfig
from tp_transformer.training.optim import OptimConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, stage by stage."""

    model: ModelConfig
    data: FeedConfig = field(default_factory=FeedConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
