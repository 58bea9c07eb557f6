"""What a run records: metrics.jsonl, a log, TensorBoard; and what it shows meanwhile."""

import json
import math
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from tp_transformer.foundation import atomic
from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.run_folder import LOG, METRICS, TENSORBOARD
from tp_transformer.training.display import Display
from tp_transformer.training.records import TRAIN, VALIDATION, Record, as_line, read_records

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


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
        display: Display,
        revalidates: bool = False,
    ) -> None:
        self._run = run
        self._resume_step, self._revalidates = resume_step, revalidates
        self._tensorboard = _open_tensorboard(run, resume_step) if tensorboard else None
        self._display = display
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
