"""What an evaluation asks, and how: the options of `tpt evaluate`.

Nothing here imports torch, because the command line reads its options from these classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import Count, PositiveInt, Seed, check_fields

SplitName = Literal["train", "interpolate", "extrapolate"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to ask.

    Attributes:
        modules: names of modules, or patterns such as 'arithmetic__*'
        splits: splits of the store; by default all that it has
        train_count: questions of each module's training split, drawn at random
        seed: seed of the random choice
    """

    modules: tuple[str, ...] = ("*",)
    splits: tuple[SplitName, ...] | None = None
    train_count: Count = 1000
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Work:
    """How to evaluate.

    Attributes:
        decode: questions on which greedy decoding is checked to give the same verdict
        diagnose: wrong answers of each module and split that are decoded and diagnosed
        predictions: a file for every answer, as JSON lines; all wrong ones are then diagnosed
        precision: bfloat16 is faster with native bfloat16; what it leaves in doubt is asked again
            in float32
        symbols_per_pass: most symbols that one pass holds, by default as the device allows; no
            verdict depends on it
    """

    decode: Count = 0
    diagnose: Count = 100
    predictions: Path | None = None
    precision: Precision = "float32"
    symbols_per_pass: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise SettingsError(f"the precision is one of {known}, not {self.precision!r}")
