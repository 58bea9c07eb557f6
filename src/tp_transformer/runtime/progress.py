"""Progress of long commands: a bar in a terminal, otherwise a line every half minute.

Library functions report through `track`, which shows nothing unless the caller asked for it:

>>> with showing(progress):
...     for item in track("probing heads", items):
...         ...
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Update: TypeAlias = Callable[[int, int], None]  # called with the completed and the total amount
Show: TypeAlias = Callable[[str], AbstractContextManager[Update]]  # such as `progress`

_SECONDS_BETWEEN_LINES = 30.0


class Interval:
    """Whether enough seconds have passed to print or save again."""

    def __init__(self, seconds: float, *, starts_due: bool = False) -> None:
        self._seconds = seconds
        self._last = -math.inf if starts_due else time.monotonic()

    def is_over(self) -> bool:
        """Whether the interval is over; then the next one begins."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class RecentSpeed:
    """The speed of work in the last `window` seconds.

    The speed of a shared machine changes, and the mean over all of the work would follow slowly.
    """

    def __init__(self, window: float = math.inf) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()  # time, completed amount

    def add(self, seconds: float, done: int) -> None:
        """Add the completed amount at a time; at most one point per second is kept."""
        if self._points and seconds - self._points[-1][0] < 1.0:
            return
        self._points.append((seconds, done))
        while len(self._points) > 2 and seconds - self._points[1][0] >= self._window:
            self._points.popleft()

    def per_second(self, seconds: float, done: int) -> float | None:
        """Return the mean speed from the start of the window to now; None if there is none yet."""
        if not self._points or seconds <= self._points[0][0] or done <= self._points[0][1]:
            return None
        return (done - self._points[0][1]) / (seconds - self._points[0][0])


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
    interval = Interval(_SECONDS_BETWEEN_LINES)
    speeds = RecentSpeed()

    def update(done: int, total: int) -> None:
        now = time.monotonic()
        speeds.add(now, done)  # its first point excludes what an earlier run completed
        if interval.is_over():
            speed = speeds.per_second(now, done)
            left = f", {(total - done) / speed / 60:.1f} min left" if speed else ""
            share = f"{done / max(total, 1):.0%}"
            rate = _rate(speed or 0.0, in_bytes)
            print(f"{title}: {share}, {rate}{left}", file=sys.stderr, flush=True)

    return update
