"""SIGTERM and Ctrl-C, remembered until a loop looks."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT)
SECONDS_OF_ONE_CTRL_C = 1.0


class Signals:
    """Inside, SIGTERM and Ctrl-C are only remembered; a second Ctrl-C ends at once.

    Not one within a second: at Ctrl-C a terminal tells all processes, and torchrun tells its own
    once more.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
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
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
        elif number == signal.SIGINT and now - self._since > SECONDS_OF_ONE_CTRL_C:
            raise KeyboardInterrupt
