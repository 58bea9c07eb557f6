"""Deferred handling of Ctrl-C, SIGTERM and SIGHUP during training."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from tp_transformer.runtime.signals import NUMBERS, SECONDS_OF_ONE_SIGNAL, leave_terminal

# Handled even if the process was started with them ignored.
ALWAYS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Records signals inside its context; a second Ctrl-C, after at least a second, interrupts."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Other threads cannot set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                if number not in ALWAYS and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # as under nohup
                self._earlier[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number not in ALWAYS:
            leave_terminal()
        if self.received is None:
            self.received, self._since = number, now
        elif number == signal.SIGINT and now - self._since > SECONDS_OF_ONE_SIGNAL:
            raise KeyboardInterrupt
