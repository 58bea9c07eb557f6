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
    after `resume_step` is forgotten first: those steps will be taken again.
    """

    def __init__(
        self, run: Path, *, resume_step: int, tensorboard: bool, title: str, quiet: bool = False
    ) -> None:
        self._run = run
        self._resume_step = resume_step
        self._tensorboard = _open_tensorboard(run, resume_step) if tensorboard else None
        self._display = display(title, quiet)
        self._title = title
        self._open = ExitStack()

    def __enter__(self) -> Self:
        earlier = forget_after(self._run / METRICS, self._resume_step)
        with ExitStack() as stack:
            if self._tensorboard is not None:
                stack.callback(self._tensorboard.close)
            self._metrics: IO[str] = stack.enter_context(_appending(self._run / METRICS))
            self._log: IO[str] = stack.enter_context(_appending(self._run / LOG))
            self._display.recall(earlier)
            stack.enter_context(self._display)
            self._open = stack.pop_all()
        self._write_log(self._title)
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


def forget_after(path: Path, step: int) -> list[Record]:
    """Drop the records after a step and what is not a whole record; return those that stay.

    The shortened file takes the place of the old one at once. The old one is read inside, because
    a process that was killed here may have left it aside, and `whole` puts it back.
    """
    with atomic.whole(path) as shortened:
        lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
        records = [record for line in lines if (record := _parsed(line)) is not None]
        kept = [record for record in records if record["step"] <= step]
        shortened.write_text("".join(json.dumps(record) + "\n" for record in kept), "utf-8")
    return kept


def _parsed(line: str) -> Record | None:
    try:
        record = json.loads(line)
        return record if isinstance(record["kind"], str) and record["step"] >= 0 else None
    except (ValueError, KeyError, TypeError):
        return None


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
    kind, step = record["kind"], record["step"]
    numbers = {f"{kind}/{name}": value for name, value in record.items()}
    numbers |= {f"modules/{name}": value for name, value in record.get("modules", {}).items()}
    for name, value in numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name[-5:] != "/step":
            writer.add_scalar(name, value, step)
    writer.flush()
