"""Recording of a run: metrics.jsonl, log.txt, TensorBoard and the display."""

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
    """The interface of `Metrics`, used on rank 0, and of `NullRecorder`, used on other ranks."""

    def record(self, values: Record) -> None: ...  # noqa: D102

    def say(self, text: str) -> None: ...  # noqa: D102

    def note(self, text: str) -> None: ...  # noqa: D102


class NullRecorder:
    """Discards everything; for ranks that do not write."""

    def record(self, values: Record) -> None:
        """Discard a record."""

    def say(self, text: str) -> None:
        """Discard a message."""

    def note(self, text: str) -> None:
        """Discard a line of the log."""


class Metrics:
    """Writes the records of a run; a context manager.

    Each record is written to metrics.jsonl and log.txt and shown by the display. Records after
    `resume_step` are removed first, because those steps will be repeated. If the run `revalidates`
    that step, its validation is removed too.
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
            self.say(f"removed incomplete lines from {METRICS}: {n_dropped}")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def record(self, values: Record) -> None:
        """Write and show a record."""
        record = {name: _finite(value) for name, value in values.items()}
        self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self._metrics.flush()
        self._write_log(as_line(record))
        self._display.show(record)
        if self._tensorboard is not None:
            _add(self._tensorboard, record)

    def say(self, text: str) -> None:
        """Write a message to the log and to the display."""
        self._write_log(text)
        self._display.say(text)

    def note(self, text: str) -> None:
        """Write a message to the log only; ignore a full disk, which is reported elsewhere."""
        with suppress(OSError):
            self._write_log(text)

    def _write_log(self, text: str) -> None:
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._log.flush()


def forget_after(path: Path, step: int, *, revalidates: bool = False) -> tuple[list[Record], int]:
    """Remove the records after a step; return the others and the number of invalid lines.

    The file is replaced atomically. It is read inside the context, because `whole` first restores
    the file if an earlier process was killed while replacing it.
    """
    with atomic.whole(path) as shortened:
        records, n_others = read_records(path) if path.exists() else ([], 0)
        kept = [record for record in records if record["step"] <= step]
        if revalidates:
            kept = [one for one in kept if one["kind"] == TRAIN or one["step"] < step]
        shortened.write_text("".join(json.dumps(record) + "\n" for record in kept), "utf-8")
    return kept, n_others


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
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
    # TensorBoard hides the events of earlier processes from this step on.
    return SummaryWriter(str(run / TENSORBOARD), purge_step=resume_step + 1)


def _add(writer: "SummaryWriter", record: Record) -> None:
    """Add each number of a record as a scalar, such as train/loss, also by module."""
    kind, step = record.get("split", record["kind"]), record["step"]
    modules = "modules" if record["kind"] == VALIDATION else f"{kind}-modules"
    numbers = {f"{kind}/{name}": value for name, value in record.items()}
    numbers |= {f"{modules}/{name}": value for name, value in record.get("modules", {}).items()}
    for name, value in numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name[-5:] != "/step":
            writer.add_scalar(name, value, step)
    writer.flush()
