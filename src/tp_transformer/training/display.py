"""Displays of a run in progress; the live panel for terminals is `report/panel.py`."""

import math
import sys
import time
from collections.abc import Sequence
from typing import Self

from tp_transformer.training.records import Record, as_line

_SECONDS_BETWEEN_LINES = 10.0  # keeps the output of long runs readable


class Display:
    """Base class of displays, which shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def recall(self, records: Sequence[Record]) -> None:
        """Receive the records from before the run was resumed."""

    def show(self, record: Record) -> None:
        """Show a record."""

    def update(self, record: Record) -> None:
        """Show averages that are not recorded, between two records."""

    def say(self, text: str) -> None:
        """Show a message."""


class Lines(Display):
    """Prints a line for each validation, and a training record every ten seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = -math.inf

    def __enter__(self) -> Self:
        self.say(self._title)
        return self

    def show(self, record: Record) -> None:
        """Print a validation, or a training record if the last one is ten seconds old."""
        now = time.monotonic()
        if record["kind"] == "train":
            if now - self._last < _SECONDS_BETWEEN_LINES:
                return
            self._last = now
        self.say(as_line(record))

    def update(self, record: Record) -> None:
        """Print the averages if the last training record is ten seconds old."""
        self.show(record)

    def say(self, text: str) -> None:
        """Print a message."""
        print(text, file=sys.stderr, flush=True)
