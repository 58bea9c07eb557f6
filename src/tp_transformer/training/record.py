"""What a run records and shows: metrics.jsonl, log.txt, the display, and loggers elsewhere.

A record is a line of metrics.jsonl. The live panel for terminals is `report/panel.py`. A logger has
two methods, `record` and `close`. TensorBoard, Weights & Biases and trackio are chosen by name; a
function that takes a record is a logger too:

>>> train(config, "math", "runs/first", loggers=["tensorboard", print])
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import msgspec

from tp_transformer.errors import UserError
from tp_transformer.registry import Registry
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import Interval
from tp_transformer.runtime.run_folder import LOG, METRICS, TENSORBOARD

TRAIN, VALIDATION, MONITOR = "train", "validation", "monitor"  # kinds of records

Record = dict[str, Any]
Number = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
Step = Annotated[int, msgspec.Meta(ge=0)]


class _Line(msgspec.Struct, tag_field="kind", kw_only=True):
    """The fields that every record has; a loss that is not finite is null."""

    step: Step
    loss: Number | None
    exact_match: Number


class _TrainLine(_Line, tag=TRAIN, kw_only=True):
    learning_rate: Number
    samples_per_second: Number
    padding: Number
    waiting: Number
    skipped: int
    elapsed: Number
    progress: Number
    time_left: Number | None


class _ValidationLine(_Line, tag=VALIDATION, kw_only=True):
    n: int
    best: bool


class _MonitorLine(_Line, tag=MONITOR, kw_only=True):
    n: int
    split: str


_AnyLine = _TrainLine | _ValidationLine | _MonitorLine


def parsed(line: str | bytes) -> Record | None:
    """Parse a line of metrics.jsonl; return None if it is not a complete record."""
    try:
        record: Record = msgspec.json.decode(line)
        msgspec.convert(record, _AnyLine)
    except (ValueError, RecursionError):
        return None
    return record


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a run, and the number of lines that are incomplete or invalid."""
    lines = path.read_bytes().splitlines()
    records = [record for line in lines if (record := parsed(line)) is not None]
    return records, len(lines) - len(records)


def as_line(record: Record) -> str:
    """Return a record as one line of text."""
    step = f"step {record['step']:,}"
    if record["kind"] != TRAIN:
        name = f"monitor of {record['split']}" if record["kind"] == MONITOR else VALIDATION
        best = ", the best so far" if record.get("best") else ""
        return (
            f"{step}: {name} on {record['n']:,} questions: loss "
            f"{number(record['loss'])}, exact match {share(record['exact_match'], 1)}{best}"
        )
    fields = [
        f"loss {number(record['loss'])}",
        f"exact match {share(record['exact_match'], 1)}",
        f"{record['samples_per_second']:,.0f} samples/s",
        f"padding {share(record['padding'])}",
        f"waiting {share(record['waiting'])}",
        f"learning rate {record['learning_rate']:.2g}",
    ]
    if record["skipped"]:
        fields.append(f"skipped {record['skipped']:,}")
    if record["time_left"] is not None:
        fields.append(f"{duration(record['time_left'])} left")
    return f"{step} ({share(record['progress'])}): {', '.join(fields)}"


def number(value: float | None) -> str:
    """Format a loss with four significant digits."""
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if value >= 0.1 else f"{value:.3g}"


def share(value: float, digits: int = 0) -> str:
    """Format a share as a percentage; only 1 is formatted as 100%."""
    almost = 1.0 - 10.0 ** -(digits + 2)
    return f"{min(value, almost) if value < 1.0 else value:.{digits}%}"


def duration(seconds: float) -> str:
    """Format a duration such as 3d 04:05:06, 4:05:06 or 5:06."""
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{seconds:02}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


class Display:
    """Base class of what is told about a run in progress; it shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def recall(self, records: Sequence[Record]) -> None:
        """Receive the records from before the run was resumed."""

    def show(self, record: Record) -> None:
        """Show a record."""

    def update(self, record: Record) -> None:
        """Show averages that are not recorded, between two records."""

    def say(self, text: str) -> None:
        """Show a message."""

    def log(self, text: str) -> None:
        """Receive a message for the log only."""


class Lines(Display):
    """Prints a line for each validation, and a training record every ten seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._interval = Interval(10.0, starts_due=True)  # keeps the output of long runs readable

    def __enter__(self) -> Self:
        self.say(self._title)
        return self

    def show(self, record: Record) -> None:
        """Print a validation, or a training record if the last one is ten seconds old."""
        if record["kind"] != TRAIN or self._interval.is_over():
            self.say(as_line(record))

    def update(self, record: Record) -> None:
        """Print the averages if the last training record is ten seconds old."""
        self.show(record)

    def say(self, text: str) -> None:
        """Print a message."""
        print(text, file=sys.stderr, flush=True)


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


class Metrics(Display):
    """Writes the records of a run.

    Each record is written to metrics.jsonl and log.txt, passed to the loggers and shown by the
    display. Records after `resume_step` are removed first, because those steps will be repeated. If
    the run `revalidates` that step, its validation is removed too.
    """

    def __init__(
        self,
        run: Path,
        *,
        resume_step: int,
        display: Display,
        loggers: Sequence[Logger] = (),
        revalidates: bool = False,
    ) -> None:
        self._run = run
        self._resume_step, self._revalidates = resume_step, revalidates
        self._loggers = loggers
        self._display = display
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for logger in self._loggers:
                stack.callback(logger.close)
            earlier, n_dropped = self._forget_repeated()
            self._metrics, self._log = (
                # The path of a run, which messages name, need not be valid UTF-8.
                stack.enter_context((self._run / name).open("a", encoding="utf-8", errors=errors))
                for name, errors in ((METRICS, "strict"), (LOG, "backslashreplace"))
            )
            self._display.recall(earlier)
            stack.enter_context(self._display)
            self._open = stack.pop_all()
        self.log(str(self._run))
        if n_dropped:
            self.say(f"removed incomplete lines from {METRICS}: {n_dropped}")
        return self

    def __exit__(self, *exception: object) -> None:
        error = exception[1]
        if isinstance(error, UserError | OSError):
            with suppress(OSError):  # such as a full disk, which is reported by the error itself
                self.log(str(error))
        self._open.close()

    def show(self, record: Record) -> None:
        """Write and show a record."""
        record = {name: _finite(value) for name, value in record.items()}
        self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self._metrics.flush()
        self.log(as_line(record))
        self._display.show(record)
        for logger in self._loggers:
            logger.record(record)

    def update(self, record: Record) -> None:
        """Show averages between two records, without recording them."""
        self._display.update({name: _finite(value) for name, value in record.items()})

    def say(self, text: str) -> None:
        """Write a message to the log and to the display."""
        self.log(text)
        self._display.say(text)

    def log(self, text: str) -> None:
        """Write a message to the log only."""
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._log.flush()

    def _forget_repeated(self) -> tuple[list[Record], int]:
        """Remove the records after a step; return the others and the number of invalid lines."""
        path, step = self._run / METRICS, self._resume_step
        # Read inside the context, which first restores a file that a killed process was replacing.
        with atomic_write(path) as shortened:
            records, n_invalid = read_records(path) if path.exists() else ([], 0)
            kept = [record for record in records if record["step"] <= step]
            if self._revalidates:
                kept = [
                    record for record in kept if record["kind"] == TRAIN or record["step"] < step
                ]
            shortened.write_text("".join(json.dumps(record) + "\n" for record in kept), "utf-8")
        return kept, n_invalid


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
