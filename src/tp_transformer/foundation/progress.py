"""Progress of long commands: a bar in a terminal, otherwise a line every half minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Update: TypeAlias = Callable[[int, int], None]  # called with the completed and the total amount

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(title: str, in_bytes: bool = False) -> Iterator[Update]:
    """Show progress; yield a function to call with the completed and the total amount."""
    if sys.stderr.isatty():
        with _bar(title, in_bytes) as update:
            yield update
    else:
        yield _lines(title, in_bytes)


@contextmanager
def _bar(title: str, in_bytes: bool) -> Iterator[Update]:
    from rich import progress as rich_progress
    from rich.console import Console

    amount = rich_progress.DownloadColumn() if in_bytes else rich_progress.MofNCompleteColumn()
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        amount,
        rich_progress.TextColumn("{task.fields[rate]}"),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, rate="")

        def update(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            rate = "" if speed is None else _rate(speed, in_bytes)
            bar.update(task, completed=done, total=total, rate=rate)

        yield update


def _rate(speed: float, in_bytes: bool) -> str:
    return f"{speed / 2**20:.1f} MiB/s" if in_bytes else f"{speed:,.0f}/s"


def _lines(title: str, in_bytes: bool) -> Update:
    """Return a function that prints the share, the speed and the time left."""
    first: tuple[float, int] | None = None  # excludes from the speed what an earlier run completed
    last = time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal first, last
        now = time.monotonic()
        first = first or (now, done)
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            speed = (done - first[1]) / max(now - first[0], 1e-9)
            left = f", {(total - done) / speed / 60:.1f} min left" if speed else ""
            share = f"{done / max(total, 1):.0%}"
            print(f"{title}: {share}, {_rate(speed, in_bytes)}{left}", file=sys.stderr, flush=True)

    return update
