"""The live panel of a run in a terminal."""

import math
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tp_transformer.training.record import Display, Lines, Record, duration, number, share

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 32


def curve(values: Sequence[float], width: int = _CURVE_WIDTH) -> str:
    """Return a row of bars, each the mean of consecutive values."""
    finite = [value for value in values if math.isfinite(value)]
    n_bars = min(width, len(finite))
    edges = [round(index * len(finite) / n_bars) for index in range(n_bars + 1)] if n_bars else []
    means = [sum(finite[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


class Panel(Display):
    """A display of a few lines at the bottom of a terminal, which are updated."""

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
        """Receive the records from before the run was resumed."""
        self._view.take(records)
        self._view.leave_off()

    def show(self, record: Record) -> None:
        """Show a record."""
        self._view.take([record])
        self._live.refresh()

    def update(self, record: Record) -> None:
        """Show averages that are not recorded, between two records."""
        self._view.update(record)

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self._console.print(text, markup=False, highlight=False)


class View:
    """Renders the records of a run as a few lines."""

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
        """Add records."""
        for record in records:
            self._take(record)
        self._curve = curve(self._losses)  # not at each refresh, because a long run has many losses

    def update(self, record: Record) -> None:
        """Show averages of training, without adding them to the curve."""
        self._train = record
        self._shown_at = time.monotonic()

    def leave_off(self) -> None:
        """Discard the speed and the time left of the run before it was resumed."""
        self._train = None

    def _take(self, record: Record) -> None:
        if record["kind"] == "validation":
            self._validation = record
            if record["best"]:
                self._best = record
        elif record["kind"] == "monitor":
            self._monitor = record
        else:
            self.update(record)
            if record["loss"] is not None:
                self._losses.append(record["loss"])

    def render(self) -> RenderableType:
        """Return the current panel."""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        if self._train is not None:
            rows.add_row("loss", f"{number(self._train['loss'])}  {self._curve}")
        rows.add_row("exact match", self._exact_match_row())
        if self._monitor is not None:
            monitored = share(self._monitor["exact_match"], 1)
            rows.add_row(self._monitor["split"], f"{monitored} (step {self._monitor['step']:,})")
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
            return Text("starting …", style="dim")
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


def display(title: str) -> Display:
    """Return a panel if standard error is a terminal, otherwise lines."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Panel(title, Console(stderr=True))
    return Lines(title)
