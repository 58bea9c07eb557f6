"""Handling of Ctrl-C, SIGTERM and SIGHUP: commands end soon, without traceback or leftovers.

The first signal raises an exception in the main thread, so that files and workers are closed. A
second signal ends the process immediately. During imports the first signal does so, because no work
has started yet, and an exception during the import of a C++ library can abort the process. The
exception is raised only in code of this package or of Python, not in functions that a C++ library
may have called, because such a library can report it as another error (observed: safetensors
reported a damaged file, at 4 of 208 signals). It is also not raised while a process is being
started, which would then print a traceback, because its parent had not sent all data.

Training must complete its step: `DeferredSignals` only records a signal.
"""

import os
import signal
import stat
import sys
import time
from types import FrameType

# Only fast imports: until `prepare` is called, Ctrl-C prints a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn, Self

# Windows has no SIGHUP.
NUMBERS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
# At Ctrl-C, a terminal signals all processes, and torchrun signals its processes again.
SECONDS_OF_ONE_SIGNAL = 1.0

SECONDS_BETWEEN_TRIES = 0.01

_STARTING = tuple(
    os.path.join("multiprocessing", name)
    for name in ("popen_spawn_posix.py", "popen_spawn_win32.py", "resource_tracker.py")
)

_first: int | None = None  # the first signal received
_first_at = 0.0
_is_resumable = False


# Deferred even if the process was started with them ignored.
_ALWAYS_DEFERRED = (signal.SIGINT, signal.SIGTERM)


class DeferredSignals:
    """Records signals inside its context; a second Ctrl-C, after at least a second, interrupts."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_at = 0.0
        self._handlers: dict[int, Any] = {}  # those of before

    def __enter__(self) -> "Self":
        for number in NUMBERS:
            is_ignored = signal.getsignal(number) is signal.SIG_IGN  # as under nohup
            if number in _ALWAYS_DEFERRED or not is_ignored:
                try:
                    self._handlers[number] = signal.signal(number, self.record)
                except ValueError:
                    break  # not in the main thread, which alone can set handlers
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def record(self, number: int, _frame: FrameType | None = None) -> None:
        """Record a signal."""
        now = time.monotonic()
        if number not in _ALWAYS_DEFERRED:
            leave_terminal()
        if self.received is None:
            self.received, self._received_at = number, now
        elif number == signal.SIGINT and now - self._received_at > SECONDS_OF_ONE_SIGNAL:
            raise KeyboardInterrupt


class Terminated(BaseException):
    """SIGTERM or SIGHUP; like KeyboardInterrupt, not derived from Exception."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def prepare() -> None:
    """Install the handlers, except for signals that are ignored, as under nohup."""
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _end_in_finalizer


def received() -> int | None:
    """Return the first signal received since `prepare`, or None."""
    return _first


def hand_over() -> None:
    """Restore the default handlers before the process exits."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number in NUMBERS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def end_now(code: int) -> "NoReturn":
    """End the process without the cleanup of Python, which may wait for threads or run C++."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the reader has closed it
    os._exit(code)


def leave_terminal() -> None:
    """Redirect output to the null device if the terminal was closed."""
    for stream in (1, 2):
        try:
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        except OSError:
            continue  # it was never open


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _first, _first_at
    now = time.monotonic()
    if number not in (signal.SIGINT, signal.SIGTERM):
        leave_terminal()
    if _first is not None and now - _first_at < SECONDS_OF_ONE_SIGNAL:
        return
    if _first is not None or _is_importing(frame):
        _end_at_once(number)
    _first, _first_at = number, now
    _raise_where_safe(frame)


def _raise_where_safe(frame: FrameType | None) -> None:
    """Raise the exception that ends the command, or retry soon, for a limited time."""
    is_library = frame is not None and "site-packages" in frame.f_code.co_filename
    is_late = time.monotonic() - _first_at > SECONDS_OF_ONE_SIGNAL
    is_unsafe = is_library or _is_importing(frame) or _is_starting_a_process(frame)
    if is_unsafe and not is_late and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _, later: _raise_where_safe(later))
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_TRIES)
        return
    raise KeyboardInterrupt if _first == signal.SIGINT else Terminated(_first or signal.SIGTERM)


def _end_in_finalizer(unraisable: "sys.UnraisableHookArgs") -> None:
    """End the process if the exception was raised in a finalizer, where Python ignores it."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated) and _first is not None:
        _end_at_once(_first)
    sys.__unraisablehook__(unraisable)


def _end_at_once(number: int) -> "NoReturn":
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    os.write(2, f"{show_cursor}tpt: {describe(number)}\n".encode())
    end_now(128 + number)


def set_resumable(resumable: bool) -> None:
    """Whether the command, given again, resumes; messages about a signal say so."""
    global _is_resumable
    _is_resumable = resumable


def describe(number: int) -> str:
    """Describe a signal for messages, and how to resume."""
    more = "; the same command resumes" if _is_resumable else ""
    if number == signal.SIGINT:
        return f"interrupted{more}"
    return f"ended by {signal.Signals(number).name}{more}"


def _is_importing(frame: FrameType | None) -> bool:
    return any(name.startswith("<frozen importlib") for name in _files(frame))


def _is_starting_a_process(frame: FrameType | None) -> bool:
    # Blocking the signal in the main thread is not enough: another thread may receive it, and
    # Python then still runs the handler in the main thread.
    return any(name.endswith(_STARTING) for name in _files(frame))


def _files(frame: FrameType | None) -> "Iterator[str]":
    """Yield the files of the functions on the stack, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
