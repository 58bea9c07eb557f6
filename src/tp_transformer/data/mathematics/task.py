"""The Mathematics Dataset as a task."""

from collections.abc import Iterable

from tp_transformer.data.mathematics.modules import (
    DIFFICULTIES,
    EXTRAPOLATE,
    EXTRAPOLATED,
    INTERPOLATE,
    MAX_QUESTION,
    MODULE_NAMES,
    STORE_KEYS,
    modules_of,
)
from tp_transformer.data.task import TASKS, TRAIN, Task
from tp_transformer.data.vocabulary import MAX_ANSWER, OF_THE_PAPER

MATHEMATICS = Task(
    name="mathematics",
    vocabulary=OF_THE_PAPER,
    splits={
        TRAIN: MODULE_NAMES,
        INTERPOLATE: MODULE_NAMES,
        EXTRAPOLATE: tuple(EXTRAPOLATED),
    },
    difficulties=DIFFICULTIES,
    continues=EXTRAPOLATED,
    area_separator="__",  # precedes it: the area
    titles={INTERPOLATE: "Interpolation", EXTRAPOLATE: "Extrapolation"},
    max_question=MAX_QUESTION,
    max_answer=MAX_ANSWER,
)


@TASKS.register("mathematics")
def mathematics() -> Task:
    """The 56 modules of Saxton et al. (2019)."""
    return MATHEMATICS


def match_modules(patterns: str | Iterable[str], split: str) -> tuple[str, ...]:
    """Return the files of a split whose module matches a pattern; see `Task.match`."""
    modules_of(split)  # raises if there is no such split
    return MATHEMATICS.match(patterns, STORE_KEYS[split][0])
