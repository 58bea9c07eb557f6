"""What a run records: metrics.jsonl, a log, TensorBoard; and what it shows meanwhile."""

import json
import math
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from tp_transformer import atomic
from tp_transformer.errors import UserError
from tp_transformer.training.display import Record, as_line, display

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

METRICS = "metrics.jsonl"
LOG = "log.txt"
TENSORBOARD = "tensorboard"
TRAIN, VALIDATION, MONITOR = "train", "validation", "monitor"  # kinds of records

# The numbers of a record that are shown, which all of its kind have; those that may be null.
_SHOWN = {
    TRAIN: (
        *("loss", "exact_match", "learning_rate", "samples_per_second", "padding", "waiting"),
        *("skipped", "elapsed", "progress", "time_left"),
    ),
    VALIDATION: ("loss", "exact_match", "n", "best"),
    MONITOR: ("loss", "exact_match", "n"),
}
_NULLABLE = ("loss", "time_left")
_LARGEST = 1e300


class Recorder(Protocol):
    """Where a loop tells what happens: `Metrics` on the first rank, nowhere on the others."""

    def record(self, values: Record) -> None: ...  # noqa: D102

    def say(self, text: str) -> None: ...  # noqa: D102

    def note(self, text: str) -> None: ...  # noqa: D102


class Nowhere:
    """For the ranks that write nothing."""

    def record(self, values: Record) -> None:
        """Forget a record."""

    def say(self, text: str) -> None:
        """Forget a line."""

    def note(self, text: str) -> None:
        """Forget a line of the log."""


class Metrics:
    """The records of a run, to be used in a `with` block.

    Each is a line of metrics.jsonl, a line of log.txt and what the display shows. What was recorded
    after `resume_step` is forgotten first: those steps will be taken again. If the run
    `revalidates` that step, its validation is forgotten, too.
    """

    def __init__(
        self,
        run: Path,
        *,
        resume_step: int,
        tensorboard: bool,
        title: str,
        revalidates: bool = False,
        quiet: bool = False,
    ) -> None:
        self._run = run
        self._resume_step, self._revalidates = resume_step, revalidates
        self._tensorboard = _open_tensorboard(run, resume_step) if tensorboard else None
        self._display = display(title, quiet)
        self._title = title
        self._open = ExitStack()

    def __enter__(self) -> Self:
        earlier, n_dropped = forget_after(
            self._run / METRICS, self._resume_step, revalidates=self._revalidates
        )
        with ExitStack() as stack:
            if self._tensorboard is not None:
                stack.callback(self._tensorboard.close)
            self._metrics: IO[str] = stack.enter_context(_appending(self._run / METRICS))
            self._log: IO[str] = stack.enter_context(_appending(self._run / LOG))
            self._display.recall(earlier)
            stack.enter_context(self._display)
            self._open = stack.pop_all()
        self._write_log(self._title)
        if n_dropped:
            self.say(f"lines of {METRICS} that are not whole records are dropped: {n_dropped}")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def record(self, values: Record) -> None:
        """Write a record down and show it."""
        record = {name: _finite(value) for name, value in values.items()}
        self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self._metrics.flush()
        self._write_log(as_line(record))
        self._display.show(record)
        if self._tensorboard is not None:
            _add(self._tensorboard, record)

    def say(self, text: str) -> None:
        """Put one line into the log and onto the screen."""
        self._write_log(text)
        self._display.say(text)

    def note(self, text: str) -> None:
        """Put one line into the log alone; a disk that is full has been told of already."""
        with suppress(OSError):
            self._write_log(text)

    def _write_log(self, text: str) -> None:
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._log.flush()


def forget_after(path: Path, step: int, *, revalidates: bool = False) -> tuple[list[Record], int]:
    """Drop the records after a step; return those that stay, and how many lines were not records.

    The shortened file takes the place of the old one at once. The old one is read inside, because
    a process that was killed here may have left it aside, and `whole` puts it back.
    """
    with atomic.whole(path) as shortened:
        records, n_others = read_records(path) if path.exists() else ([], 0)
        kept = [record for record in records if record["step"] <= step]
        if revalidates:
            kept = [one for one in kept if one["kind"] == TRAIN or one["step"] < step]
        shortened.write_text("".join(json.dumps(record) + "\n" for record in kept), "utf-8")
    return kept, n_others


def read_records(path: Path) -> tuple[list[Record], int]:
    """The records of a run, and how many lines are not, such as one that was cut short."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    records = [record for line in lines if (record := parsed(line)) is not None]
    return records, len(lines) - len(records)


def parsed(line: str | bytes) -> Record | None:
    """A line of metrics.jsonl; None if it is not a whole record."""
    try:
        record = json.loads(line)
        json.dumps(record, allow_nan=False)  # Python reads numbers that JSON does not have
        names = _SHOWN[record["kind"]]
        is_whole = all(_is_shown(record[name], name in _NULLABLE) for name in names)
        is_step = type(record["step"]) is int and record["step"] >= 0
        return record if is_whole and is_step else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_shown(value: Any, is_nullable: bool) -> bool:
    if value is None:
        return is_nullable
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _finite(value: Any) -> Any:
    """JSON has no word for infinity or what is not a number: such a value is absent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _appending(path: Path) -> IO[str]:
    return path.open("a", encoding="utf-8")


def _open_tensorboard(run: Path, resume_step: int) -> "SummaryWriter":
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed: pip install 'tp-transformer[tensorboard]'"
        ) from error
    # TensorBoard hides what an earlier process wrote from this step on.
    return SummaryWriter(str(run / TENSORBOARD), purge_step=resume_step + 1)


def _add(writer: "SummaryWriter", record: Record) -> None:
    """Every number of a record as a curve, such as train/loss; modules have theirs."""
    kind, step = record.get("split", record["kind"]), record["step"]
    modules = "modules" if record["kind"] == VALIDATION else f"{kind}-modules"
    numbers = {f"{kind}/{name}": value for name, value in record.items()}
    numbers |= {f"{modules}/{name}": value for name, value in record.get("modules", {}).items()}
    for name, value in numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name[-5:] != "/step":
            writer.add_scalar(name, value, step)
    writer.flush()
