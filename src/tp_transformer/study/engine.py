"""The engine of studies: runs of several rows and seeds, trained side by side, resumed and scored.

A study (the bench, the reproduction, the demo that trains) lists its runs and writes a document of
their scores. A run that is finished or scored is not repeated; others resume from their checkpoint.
Small models do not use two cores well: side by side, with half of the cores each, two of them
process about 1.5 times as many questions as one after the other.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tp_transformer import settings
from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.data.store import Store
from tp_transformer.errors import FolderError, UserError
from tp_transformer.model.checkpoint import load, model_hash
from tp_transformer.report.panel import View
from tp_transformer.runtime.files import write_json
from tp_transformer.runtime.processes import n_cores, workers
from tp_transformer.runtime.progress import progress
from tp_transformer.runtime.run_folder import LAST, METRICS
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.results import Results
from tp_transformer.training.config import RunConfig, config_values
from tp_transformer.training.record import Lines, Record, parsed

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_SAVE = 30.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A run of a study."""

    name: str  # of the row and the seed
    preset: str  # with most of its settings
    config: RunConfig  # all settings
    data: Path  # the folder of the store
    folder: Path  # the run folder
    results: Path  # the file of its scores
    threads: int | None = 1  # that train it; absent: its share of the cores
    device: str = "auto"  # that trains and scores it: auto, cpu, cuda or mps
    scores_last: bool = False  # the model at the end, not that with the best validation

    @property
    def is_scored(self) -> bool:
        """Whether the run is finished and has its scores."""
        return self.results.is_file()

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `tpt train` that change the preset to the settings of the run."""
        preset = config_values(RunConfig.of(self.preset))
        changes = settings.changed(preset, config_values(self.config))
        return tuple(
            f"--{section}.{field}={value if isinstance(value, str) else json.dumps(value)}"
            for (section, field), value in changes.items()
        )

    def command(self) -> list[str]:
        """Return the arguments of `tpt` that start or resume the run."""
        threads = [] if self.threads is None else [f"--threads={self.threads}"]
        folders = ["--run", str(self.folder), "--data", str(self.data)]
        chosen = ["--config", self.preset, "--device", self.device, *threads, *self.options]
        return ["train", *folders, *chosen]

    def score(self, choice: QuestionChoice, work: EvaluationOptions) -> Results:
        """Return the scores of the trained model: those in the file, if they are of this model."""
        folder = self.folder / LAST if self.scores_last else self.folder
        if self.is_scored:
            results = Results.read(self.results)
            if results.model.get("sha256") == model_hash(load(folder)):
                return results
        options: dict[str, Any] = {"device": self.device, "show": progress}
        return evaluate(folder, self.data, self.results, choice, work, **options)


def train_side_by_side(
    runs: Sequence[StudyRun],
    console: Console,
    at_once: int | None = None,
    ended: Callable[[StudyRun], None] = lambda _: None,
) -> None:
    """Train runs in processes and show their progress, until all have ended or one has failed.

    All of them run at the same time, or `at_once` of them; they share the cores equally. `ended` is
    called with each run that has ended. If this is interrupted, runs are stopped and can resume.
    """
    at_once = min(len(runs), at_once or len(runs))
    waiting, running = deque(runs), list[_Process]()
    n_threads = max(1, n_cores() // max(1, at_once))
    try:
        with _displayed(running, console) as look:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(_Process(waiting.popleft(), n_threads))
                # Checked before reading, so that a run that ends afterwards is read once more.
                finished = [process for process in running if not process.is_alive]
                if not finished:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                look()
                for process in running:
                    process.check_exit()
                for process in finished:
                    process.wait()
                    running.remove(process)
                    ended(process.run)
    finally:  # those still running save and exit
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


class _Process:
    """A process that trains a run. It stops, and saves, when the process that started it ends."""

    def __init__(self, run: StudyRun, n_threads: int) -> None:
        self.run = run
        self._records = run.folder / METRICS
        self._n_read = 0  # bytes of the records
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by `wait`
        self._process = subprocess.Popen(  # noqa: S603, a fixed command
            [sys.executable, "-m", "tp_transformer.supervised", *run.command()],
            env={**os.environ, "OMP_NUM_THREADS": str(n_threads)},
            stdin=subprocess.PIPE,  # closed when this process ends
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def check_exit(self) -> None:
        """Raise with the last message of the process, if it failed."""
        if self._process.poll():
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
            last = lines[-1] if lines else "no reason"
            raise UserError(f"training {self.run.name} failed: {last}")

    def new_records(self) -> list[Record]:
        """Return the records since the last call, from complete lines only."""
        if not self._records.exists():
            return []
        with self._records.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._n_read:
                self._n_read = 0  # a resumed run has removed the records of steps to repeat
            file.seek(self._n_read)
            lines, _, _ = file.read().rpartition(b"\n")
        self._n_read += len(lines) + 1 if lines else 0
        return [record for line in lines.splitlines() if (record := parsed(line)) is not None]

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        """Wait until the process has saved and exited."""
        try:
            self._process.wait(_SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


@contextmanager
def _displayed(running: Sequence[_Process], console: Console) -> Iterator[Callable[[], None]]:
    """Yield a function that shows the new records of the running processes."""
    if not console.is_terminal:
        displays: dict[_Process, _RunLines] = {}

        def print_lines() -> None:
            for process in running:
                display = displays.setdefault(process, _RunLines(process.run.name, console))
                for record in process.new_records():
                    display.show(record)

        yield print_lines
        return
    views: dict[_Process, View] = {}
    with Live(
        get_renderable=lambda: Group(*(view.render() for view in views.values())),
        console=console,
        refresh_per_second=2,
    ) as live:

        def update_views() -> None:
            for ended in [process for process in views if process not in running]:
                console.print(views.pop(ended).render())  # above those that are still running
            for process in running:
                views.setdefault(process, View(process.run.name)).take(process.new_records())
            live.refresh()

        yield update_views


class _RunLines(Lines):
    """Prints the records of one of several runs."""

    def __init__(self, name: str, console: Console) -> None:
        super().__init__(name)
        self._name, self._console = name, console

    def say(self, text: str) -> None:
        """Print a message after the name of the run."""
        self._console.print(Text(f"{self._name}: {text}"), soft_wrap=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, as the runs of a bench and of a reproduction do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def generated_store(order: Order, folder: Path) -> Store:
    """Generate questions into a folder, unless they are there, and show the progress."""
    with progress("generating") as update:
        return produce(order, folder, workers(None), progress=update)


def read_json(file: Path, kind: type[T]) -> T:
    """Read a JSON file of a study; raise if it does not hold values of this type."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise FolderError(f"{file} is damaged or cannot be read: {error}") from error


def begin(file: Path, values: Mapping[str, Any]) -> None:
    """Record what the folder of a file is begun with; raise if it was begun with something else."""
    wanted = _by_name(msgspec.json.decode(msgspec.json.encode(values)))  # JSON has no tuples
    if not file.is_file():
        write_json(file, values)
        return
    recorded = _by_name(read_json(file, dict[str, Any]))
    for name in {**recorded, **wanted}:
        if recorded.get(name) != wanted.get(name):
            earlier, now = (json.dumps(part.get(name))[:80] for part in (recorded, wanted))
            raise FolderError(
                f"{file.parent} was begun with other settings: {name} is {earlier}, not {now}; "
                "repeat the command that began it, or choose another --out"
            )


def _by_name(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by names such as `training.steps`."""
    named: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        named |= _by_name(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return named
