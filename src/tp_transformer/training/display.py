"""What a run shows while it trains; the live panel for terminals is `show/panel.py`."""

import math
import sys
import time
from collections.abc import Sequence
from typing import Self

from tp_transformer.training.records import Record, as_line

_SECONDS_BETWEEN_LINES = 10.0  # a run of ten days should not fill a log that is read by people


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
