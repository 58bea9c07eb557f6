"""Progress of long commands: a bar in a terminal, otherwise a line every half minute.

Library functions report through `track`, which shows nothing unless the caller asked for it:

>>> with showing(progress):
...     for item in track("probing heads", items):
...         ...
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Update: TypeAlias = Callable[[int, int], None]  # called with the completed and the total amount
Show: TypeAlias = Callable[[str], AbstractContextManager[Update]]  # such as `progress`

_SECONDS_BETWEEN_LINES = 30.0


class Counted:
    """Counts completed work, and reports it to an `Update`, if there is one."""

    def __init__(self, total: int, progress: Update | None, done: int = 0) -> None:
        self.total, self.done, self._progress = total, done, progress

    def add(self, count: int) -> None:
        """Add completed work."""
        self.done += count
        if self._progress:
            self._progress(self.done, self.total)


@dataclass
class _Tracking:
    """How `track` shows progress, and the bar that is open."""

    show: Show
    bar: ExitStack
    is_busy: bool = False  # there is one bar at a time


_tracking: ContextVar[_Tracking | None] = ContextVar("_tracking", default=None)


@contextmanager
def showing(show: Show) -> Iterator[None]:
    """Show what is tracked inside; a bar that an exception left open is closed at the end."""
    with ExitStack() as bar:
        before = _tracking.set(_Tracking(show, bar))
        try:
            yield
        finally:
            _tracking.reset(before)


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield the items, and show how many of them are done; iterators need the total.

    Nothing is shown for items that are tracked while another item is worked on.
    """
    tracking = _tracking.get()
    if tracking is None or tracking.is_busy:
        yield from items
        return
    if total is None:
        items = list(items)
        total = len(items)
    tracking.is_busy = True
    try:
        update = tracking.bar.enter_context(tracking.show(title))
        update(0, total)
        for done, item in enumerate(items, 1):
            yield item
            update(done, total)
    finally:
        tracking.bar.close()
        tracking.is_busy = False


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
    if in_bytes:
        return f"{speed / 2**20:.1f} MiB/s"
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"


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
