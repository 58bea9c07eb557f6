"""Recording of a run: metrics.jsonl, log.txt, loggers and the display."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.run_folder import LOG, METRICS
from tp_transformer.training.display import Display
from tp_transformer.training.loggers import Logger
from tp_transformer.training.records import TRAIN, Record, as_line, read_records


class Recorder:
    """Base class of `Metrics`, which discards everything; for ranks that do not write."""

    def record(self, values: Record) -> None:
        """Write and show a record."""

    def show(self, values: Record) -> None:
        """Show averages between two records, without recording them."""

    def say(self, text: str) -> None:
        """Write a message to the log and to the display."""

    def note(self, text: str) -> None:
        """Write a message to the log only; ignore a full disk, which is reported elsewhere."""


class Metrics(Recorder):
    """Writes the records of a run; a context manager.

    Each record is written to metrics.jsonl and log.txt, passed to the loggers and shown by the
    display. Records after `resume_step` are removed first, because those steps will be repeated. If
    the run `revalidates` that step, its validation is removed too.
    """

    def __init__(
        self,
        run: Path,
        *,
        resume_step: int,
        title: str,
        display: Display,
        loggers: Sequence[Logger] = (),
        revalidates: bool = False,
    ) -> None:
        self._run = run
        self._resume_step, self._revalidates = resume_step, revalidates
        self._loggers = loggers
        self._display = display
        self._title = title
        self._open = ExitStack()

    def __enter__(self) -> Self:
        earlier, n_dropped = forget_after(
            self._run / METRICS, self._resume_step, revalidates=self._revalidates
        )
        with ExitStack() as stack:
            for logger in self._loggers:
                stack.callback(logger.close)
            self._metrics, self._log = (
                stack.enter_context((self._run / name).open("a", encoding="utf-8"))
                for name in (METRICS, LOG)
            )
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
        for logger in self._loggers:
            logger.record(record)

    def show(self, values: Record) -> None:
        """Show averages between two records, without recording them."""
        self._display.update({name: _finite(value) for name, value in values.items()})

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
    with atomic_write(path) as shortened:
        records, n_others = read_records(path) if path.exists() else ([], 0)
        kept = [record for record in records if record["step"] <= step]
        if revalidates:
            kept = [record for record in kept if record["kind"] == TRAIN or record["step"] < step]
        shortened.write_text("".join(json.dumps(record) + "\n" for record in kept), "utf-8")
    return kept, n_others


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
