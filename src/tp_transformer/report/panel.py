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

from tp_transformer.training.record import (
    MONITOR,
    TRAIN,
    VALIDATION,
    Display,
    Lines,
    Record,
    duration,
    number,
    share,
)

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
        self._last: dict[str, Record] = {}  # of each kind
        self._best: Record | None = None
        self._shown_at = 0.0
        self._losses: list[float] = []
        self._curve = ""

    def take(self, records: Sequence[Record]) -> None:
        """Add records."""
        for record in records:
            self.update(record)
            if record.get("best"):
                self._best = record
            if record["kind"] == TRAIN and record["loss"] is not None:
                self._losses.append(record["loss"])
        self._curve = curve(self._losses)  # not at each refresh, because a long run has many losses

    def update(self, record: Record) -> None:
        """Show a record, without adding it to the curve."""
        self._last[record["kind"]] = record
        if record["kind"] == TRAIN:
            self._shown_at = time.monotonic()

    def leave_off(self) -> None:
        """Discard the speed and the time left of the run before it was resumed."""
        self._last.pop(TRAIN, None)

    def render(self) -> RenderableType:
        """Return the current panel."""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        train, monitor = self._last.get(TRAIN), self._last.get(MONITOR)
        if train is not None:
            rows.add_row("loss", f"{number(train['loss'])}  {self._curve}")
        rows.add_row("exact match", self._exact_match())
        if monitor is not None:
            monitored = share(monitor["exact_match"], 1)
            rows.add_row(monitor["split"], f"{monitored} (step {monitor['step']:,})")
        if train is not None:
            speed = f"{train['samples_per_second']:,.0f} samples/s   padding "
            speed += f"{share(train['padding'])}   waiting for data {share(train['waiting'])}"
            rows.add_row("speed", speed)
            rows.add_row("learning rate", f"{train['learning_rate']:.2g}")
            if count := train["skipped"]:
                steps = "step" if count == 1 else "steps"
                skipped = f"{count:,} {steps} whose loss or gradient was not finite"
                rows.add_row("skipped", Text(skipped, style="red"))
        title = Text(self._title, style="bold", overflow="ellipsis", no_wrap=True)
        return Group(title, self._progress(train), rows)

    def _progress(self, train: Record | None) -> RenderableType:
        if train is None:
            return Text("starting …", style="dim")
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(no_wrap=True)
        bar = ProgressBar(total=1.0, completed=train["progress"])
        step, remaining = f"step {train['step']:,}", self._time(train)
        row.add_row(bar, share(train["progress"]), step, remaining)
        return row

    def _time(self, record: Record) -> str:
        if record["time_left"] is None or record["progress"] >= 1.0:
            return f"after {duration(record['elapsed'])}"
        passed = time.monotonic() - self._shown_at
        return f"{duration(record['time_left'] - passed)} left"

    def _exact_match(self) -> str:
        texts = []
        if train := self._last.get(TRAIN):
            texts.append(f"training {share(train['exact_match'], 1)}")
        if validation := self._last.get(VALIDATION):
            texts.append(f"held-out {share(validation['exact_match'], 1)}")
        if self._best is not None:
            best = share(self._best["exact_match"], 1)
            texts.append(f"best {best} (step {self._best['step']:,})")
        return "   ".join(texts) or "not yet"


def display(title: str) -> Display:
    """Return a panel if standard error is a terminal, otherwise lines."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Panel(title, Console(stderr=True))
    return Lines(title)
