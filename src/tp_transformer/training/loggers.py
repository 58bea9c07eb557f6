"""Loggers: where the records of a run go besides its own files.

A logger has two methods, `record` and `close`. TensorBoard, Weights & Biases and trackio are chosen
by name; a function that takes a record is a logger too:

>>> train(config, "math", "runs/first", loggers=["tensorboard", print])
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tp_transformer.errors import UserError
from tp_transformer.registry import Registry
from tp_transformer.runtime.run_folder import TENSORBOARD
from tp_transformer.training.records import VALIDATION, Record

PROJECT = "tp-transformer"  # unless WANDB_PROJECT or TRACKIO_PROJECT names another
_MODULES = {
    "tensorboard": "torch.utils.tensorboard.writer",
    "wandb": "wandb",
    "trackio": "trackio",
}


class Logger(Protocol):
    """Receives the records of a run."""

    def record(self, values: Record) -> None:
        """Receive a record, as metrics.jsonl has it."""

    def close(self) -> None:
        """Write pending records at the end of the run or when it is interrupted."""


LogFunction = Callable[[Record], object]
AnyLogger = str | Logger | LogFunction


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """The description of a run for its loggers.

    Attributes:
        folder: the folder of the run
        id: the same whenever the run is resumed, and unique
        resume_step: the step from which the run resumes; 0 at its start
        settings: all settings, by section
    """

    folder: Path
    id: str
    resume_step: int
    settings: dict[str, Any]


LOGGERS: Registry[Callable[[LoggedRun], Logger]] = Registry("logger")


def names_in(loggers: Iterable[AnyLogger]) -> list[str]:
    """Return the loggers that are given by name, each once; raise if one is not available."""
    names = list(dict.fromkeys(logger for logger in loggers if isinstance(logger, str)))
    for name in names:
        LOGGERS[name]  # raises if there is none of that name
        if name in _MODULES:
            _imported(name)
    return names


def open_logger(logger: AnyLogger, run: LoggedRun) -> Logger:
    """Return a logger by its name, from a function, or as it is."""
    if isinstance(logger, str):
        return LOGGERS[logger](run)
    return FunctionLogger(logger) if callable(logger) else logger


class FunctionLogger:
    """Calls a function with each record."""

    def __init__(self, function: LogFunction) -> None:
        self._function = function

    def record(self, values: Record) -> None:
        """Call the function."""
        self._function(values)

    def close(self) -> None:
        """Do nothing: each record has been passed on."""


@LOGGERS.register("tensorboard")
class TensorBoardLogger:
    """Writes scalars such as train/loss to RUN/tensorboard."""

    def __init__(self, run: LoggedRun) -> None:
        # TensorBoard hides the events of earlier processes from the given step on.
        self._writer = _imported("tensorboard").SummaryWriter(
            str(run.folder / TENSORBOARD), purge_step=run.resume_step + 1
        )

    def record(self, values: Record) -> None:
        """Add the numbers of a record as scalars."""
        for name, value in _scalars(values):
            self._writer.add_scalar(name, value, values["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class TrackerLogger:
    """Sends the numbers of each record to Weights & Biases, or to trackio, whose API is the same.

    A resumed run continues the run of its name and id there.
    """

    def __init__(self, tracker: str, run: LoggedRun) -> None:
        options = {"id": run.id, "dir": str(run.folder)} if tracker == "wandb" else {}
        self._run = _imported(tracker).init(
            project=os.environ.get(f"{tracker.upper()}_PROJECT", PROJECT),
            name=f"{run.folder.name}-{run.id}",  # trackio has no ids
            config=run.settings,
            resume="allow",
            **options,
        )

    def record(self, values: Record) -> None:
        """Send the numbers of a record."""
        self._run.log(dict(_scalars(values)), step=values["step"])

    def close(self) -> None:
        """Send pending records."""
        self._run.finish()


for _tracker in ("wandb", "trackio"):
    LOGGERS.register(_tracker)(partial(TrackerLogger, _tracker))


def _imported(name: str) -> Any:
    try:
        return import_module(_MODULES[name])
    except ImportError as error:
        raise UserError(f"{name} is not installed: pip install 'tp-transformer[{name}]'") from error


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield each number of a record with its name, such as train/loss, also by module."""
    kind = record.get("split", record["kind"])
    modules = "modules" if record["kind"] == VALIDATION else f"{kind}-modules"
    numbers = {f"{kind}/{name}": value for name, value in record.items()}
    numbers |= {f"{modules}/{name}": value for name, value in record.get("modules", {}).items()}
    for name, value in numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name[-5:] != "/step":
            yield name, value
