"""What a run shows while it trains: a live panel in a terminal, plain lines elsewhere."""

import math
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Record = dict[str, Any]

_SECONDS_BETWEEN_LINES = 10.0  # a run of ten days should not fill a log that is read by people
_SCORED = {"validation": "validation", "monitor": "interpolation monitor"}
_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 32


def as_line(record: Record) -> str:
    """A record in one line."""
    step = f"step {record['step']:,}"
    if record["kind"] in _SCORED:
        best = ", the best so far" if record.get("best") else ""
        return (
            f"{step}: {_SCORED[record['kind']]} on {record['n']:,} questions: loss "
            f"{number(record['loss'])}, exact match {share(record['exact_match'], 1)}{best}"
        )
    parts = [
        f"loss {number(record['loss'])}",
        f"exact match {share(record['exact_match'], 1)}",
        f"{record['samples_per_second']:,.0f} samples/s",
        f"padding {share(record['padding'])}",
        f"waiting {share(record['waiting'])}",
        f"learning rate {record['learning_rate']:.2g}",
    ]
    if record["skipped"]:
        parts.append(f"skipped {record['skipped']:,}")
    if record["time_left"] is not None:
        parts.append(f"{duration(record['time_left'])} left")
    return f"{step} ({share(record['progress'])}): {', '.join(parts)}"


def number(value: float | None) -> str:
    """A loss, with four digits that matter."""
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if value >= 0.1 else f"{value:.3g}"


def share(value: float, digits: int = 0) -> str:
    """A share of one as a percentage; only all of it is 100%."""
    almost = 1.0 - 10.0 ** -(digits + 2)
    return f"{min(value, almost) if value < 1.0 else value:.{digits}%}"


def duration(seconds: float) -> str:
    """A time such as 3d 04:05:06, 4:05:06 or 5:06."""
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{seconds:02}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


def curve(values: Sequence[float], width: int = _CURVE_WIDTH) -> str:
    """A row of bars, each the mean of its share of the values: the whole run at a glance."""
    finite = [value for value in values if math.isfinite(value)]
    n_bars = min(width, len(finite))
    edges = [round(index * len(finite) / n_bars) for index in range(n_bars + 1)] if n_bars else []
    means = [sum(finite[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


class Display:
    """Where a run shows its records and what it says; this one is quiet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def recall(self, records: Sequence[Record]) -> None:
        """Take in what was recorded before the run was resumed."""

    def show(self, record: Record) -> None:
        """Show a record."""

    def say(self, text: str) -> None:
        """Show a line."""


class Lines(Display):
    """Plain lines: every validation, and now and then how training goes."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = -math.inf

    def __enter__(self) -> Self:
        self.say(self._title)
        return self

    def show(self, record: Record) -> None:
        """Print a record, if it is a validation or the last line is some seconds old."""
        now = time.monotonic()
        if record["kind"] == "train":
            if now - self._last < _SECONDS_BETWEEN_LINES:
                return
            self._last = now
        self.say(as_line(record))

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)


class Panel(Display):
    """A few lines at the bottom of a terminal, renewed as the run goes on."""

    def __init__(self, title: str, console: Console) -> None:
        self._console = console
        self._view = View(title)
        self._live = Live(get_renderable=self._view.render, console=console, refresh_per_second=2)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def recall(self, records: Sequence[Record]) -> None:
        """Take in the curve and the validations from before the run was resumed."""
        self._view.take(records)
        self._view.leave_off()

    def show(self, record: Record) -> None:
        """Take in a record and show it."""
        self._view.take([record])
        self._live.refresh()

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self._console.print(text, markup=False, highlight=False)


class View:
    """A run in a few lines, as far as its records tell."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._train: Record | None = None
        self._shown_at = 0.0
        self._validation: Record | None = None
        self._best: Record | None = None
        self._monitor: Record | None = None
        self._losses: list[float] = []
        self._curve = ""

    def take(self, records: Sequence[Record]) -> None:
        """Take in records."""
        for record in records:
            self._take(record)
        self._curve = curve(self._losses)  # not at each renewal: a long run has many losses

    def leave_off(self) -> None:
        """Forget the speed and the time left, which were those of another day."""
        self._train = None

    def _take(self, record: Record) -> None:
        if record["kind"] == "validation":
            self._validation = record
            if record["best"]:
                self._best = record
        elif record["kind"] == "monitor":
            self._monitor = record
        else:
            self._train = record
            self._shown_at = time.monotonic()
            if record["loss"] is not None:
                self._losses.append(record["loss"])

    def render(self) -> RenderableType:
        """The panel as it now stands."""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        if self._train is not None:
            rows.add_row("loss", f"{number(self._train['loss'])}  {self._curve}")
        rows.add_row("exact match", self._exact_match_row())
        if self._monitor is not None:
            monitored = share(self._monitor["exact_match"], 1)
            rows.add_row("interpolation", f"{monitored} (step {self._monitor['step']:,})")
        if self._train is not None:
            rows.add_row("speed", self._speed_row(self._train))
            rows.add_row("learning rate", f"{self._train['learning_rate']:.2g}")
            if self._train["skipped"]:
                rows.add_row("skipped", Text(self._skipped(self._train["skipped"]), style="red"))
        return Group(
            Text(self._title, style="bold", overflow="ellipsis", no_wrap=True),
            self._progress_row(),
            rows,
        )

    def _progress_row(self) -> RenderableType:
        if self._train is None:
            return Text("beginning …", style="dim")
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(no_wrap=True)
        progress = self._train["progress"]
        row.add_row(
            ProgressBar(total=1.0, completed=progress),
            share(progress),
            f"step {self._train['step']:,}",
            self._time(self._train),
        )
        return row

    def _time(self, record: Record) -> str:
        if record["time_left"] is None or record["progress"] >= 1.0:
            return f"after {duration(record['elapsed'])}"
        passed = time.monotonic() - self._shown_at
        return f"{duration(record['time_left'] - passed)} left"

    def _exact_match_row(self) -> str:
        parts = []
        if self._train is not None:
            parts.append(f"training {share(self._train['exact_match'], 1)}")
        if self._validation is not None:
            parts.append(f"held-out {share(self._validation['exact_match'], 1)}")
        if self._best is not None:
            best = share(self._best["exact_match"], 1)
            parts.append(f"best {best} (step {self._best['step']:,})")
        return "   ".join(parts) or "not yet"

    def _speed_row(self, record: Record) -> str:
        return (
            f"{record['samples_per_second']:,.0f} samples/s   padding {share(record['padding'])}   "
            f"waiting for data {share(record['waiting'])}"
        )

    @staticmethod
    def _skipped(count: int) -> str:
        steps = "step" if count == 1 else "steps"
        return f"{count:,} {steps} whose loss or gradient was not finite"


def display(title: str, quiet: bool = False) -> Display:
    """The display that fits where standard error leads to."""
    if quiet:
        return Display()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Panel(title, Console(stderr=True))
    return Lines(title)
