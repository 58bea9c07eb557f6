"""Progress of long work: a bar in a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Update: TypeAlias = Callable[[int, int], None]  # how much is done, and of how much

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(title: str, in_bytes: bool = False) -> Iterator[Update]:
    """Show how far something has come: a function to call with what is done and the total."""
    if sys.stderr.isatty():
        with _bar(title, in_bytes) as update:
            yield update
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str, in_bytes: bool) -> Iterator[Update]:
    from rich import progress as rich_progress
    from rich.console import Console

    amount = rich_progress.DownloadColumn() if in_bytes else rich_progress.MofNCompleteColumn()
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(),
        amount,
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str) -> Update:
    last = time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{title}: {done / max(total, 1):.0%}", file=sys.stderr, flush=True)

    return update
