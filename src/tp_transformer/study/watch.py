"""Training of several runs side by side, each in its own process, shown live.

Small models do not use two cores well: side by side, with half of the cores each, two of them
process about 1.5 times as many questions as one after the other.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tp_transformer.errors import UserError
from tp_transformer.runtime.processes import n_cores
from tp_transformer.runtime.run_folder import METRICS
from tp_transformer.show.panel import View
from tp_transformer.training.record import Record, as_line, parsed

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_TO_SAVE = 30.0

Look = Callable[[], None]


@dataclass(frozen=True)
class Run:
    """A run: its name, its folder, and the other arguments of `tpt train`."""

    name: str
    folder: Path
    arguments: tuple[str, ...]

    def command(self) -> list[str]:
        """Return the arguments of `tpt` that start or resume the run."""
        return ["train", "--run", str(self.folder), *self.arguments]


def train_side_by_side(runs: Sequence[Run], console: Console, at_once: int | None = None) -> None:
    """Train all runs and show their progress, until all have ended or one has failed.

    All of them run at the same time, or `at_once` of them; they share the cores equally.
    """
    at_once = min(len(runs), at_once or len(runs))
    waiting, running = deque(runs), list[_Started]()
    n_threads = max(1, n_cores() // max(1, at_once))
    try:
        with _shown(running, console) as look:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(_start(waiting.popleft(), n_threads))
                # Checked before reading, so that a run that ends afterwards is read once more.
                ended = [started for started in running if not started.is_alive]
                if not ended:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                look()
                for started in running:
                    started.refuse_failure()
                for started in ended:
                    started.stop()
                    running.remove(started)
    finally:  # those still running save and exit
        for started in running:
            started.terminate()
        for started in running:
            started.stop()


def _start(run: Run, n_threads: int) -> "_Started":
    """Start the process of a run."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by `stop`
    process = subprocess.Popen(  # noqa: S603, a fixed command
        [sys.executable, "-m", "tp_transformer.supervised", *run.command()],
        env={**os.environ, "OMP_NUM_THREADS": str(n_threads)},
        stdin=subprocess.PIPE,  # closed when this process ends
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    return _Started(run, process, errors)


class _Started:
    """A run whose process has been started."""

    def __init__(self, run: Run, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self.run = run
        self._process = process
        self._errors = errors
        self._records = run.folder / METRICS
        self._read = 0  # bytes of the records

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def refuse_failure(self) -> None:
        """Raise with the last message of the process, if it failed."""
        if self._process.poll():
            self._errors.seek(0)
            said = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
            raise UserError(f"training {self.run.name} failed: {said[-1] if said else 'no reason'}")

    def new_records(self) -> list[Record]:
        """Return the records since the last call, from complete lines only."""
        if not self._records.exists():
            return []
        with self._records.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._read:
                self._read = 0  # a resumed run has removed the records of steps to repeat
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        return [record for line in whole.splitlines() if (record := parsed(line)) is not None]

    def terminate(self) -> None:
        """Signal the process to save and exit."""
        self._process.terminate()

    def stop(self) -> None:
        """Wait until the process has saved and exited, after `terminate`."""
        try:
            self._process.wait(_SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


@contextmanager
def _shown(running: Sequence[_Started], console: Console) -> Iterator[Look]:
    """Yield a function that shows the current progress."""
    if not console.is_terminal:
        yield _Lines(running, console).look
        return
    views: dict[_Started, View] = {}
    with Live(
        get_renderable=lambda: Group(*(view.render() for view in views.values())),
        console=console,
        refresh_per_second=2,
    ) as live:

        def look() -> None:
            for gone in [started for started in views if started not in running]:
                console.print(views.pop(gone).render())  # above those that are still running
            for started in running:
                views.setdefault(started, View(started.run.name)).take(started.new_records())
            live.refresh()

        yield look


class _Lines:
    """Prints a line for each run every ten seconds."""

    def __init__(self, running: Sequence[_Started], console: Console) -> None:
        self._running, self._console = running, console
        self._last = time.monotonic()
        self._newest: dict[str, Record] = {}

    def look(self) -> None:
        for started in self._running:
            for record in started.new_records():
                if record["kind"] == "train":
                    self._newest[started.run.name] = record
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            for name, record in self._newest.items():
                self._console.print(Text(f"{name}: {as_line(record)}"), soft_wrap=True)
            self._newest.clear()
