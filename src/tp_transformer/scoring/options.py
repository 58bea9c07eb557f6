"""Options of `tpt evaluate`: the choice of questions, and how to evaluate.

Nothing here imports torch, because the command line reads its options from these classes.
"""

from dataclasses import dataclass
from pathlib import Path

from tp_transformer.ranges import Count, PositiveInt, Precision, Seed, check_fields


@dataclass(frozen=True, kw_only=True)
class QuestionChoice:
    """The choice of questions.

    Attributes:
        modules: names of modules, or patterns such as 'arithmetic__*'
        splits: splits of the store; by default all
        train_count: number of random training questions of each module
        seed: seed of the choice of training questions
    """

    modules: tuple[str, ...] = ("*",)
    splits: tuple[str, ...] | None = None
    train_count: Count = 1000
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation.

    Attributes:
        decode: number of questions on which verdicts are verified by greedy decoding
        diagnose: number of wrong answers of each module and split to decode and diagnose
        predictions: JSON lines file for all answers; all wrong answers are then decoded and
            diagnosed
        precision: of products. With bfloat16, small margins are recomputed in float32, so that
            verdicts are the same; float32 is used where bfloat16 is not native. With int8, the
            model is scored as it answers in int8
        symbols_per_pass: maximum number of tokens of a batch; by default it depends on the device.
            It has no effect on verdicts
        overwrite: replace results of another model, other data or another choice of questions
    """

    decode: Count = 0
    diagnose: Count = 100
    predictions: Path | None = None
    precision: Precision = "float32"
    symbols_per_pass: PositiveInt | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
