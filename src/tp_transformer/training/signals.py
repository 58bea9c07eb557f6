"""SIGTERM and Ctrl-C, remembered until a loop looks."""

import signal
import threading
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Inside, SIGTERM and Ctrl-C are only remembered; a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in NUMBERS:
                self._earlier[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = number
