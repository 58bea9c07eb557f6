"""Ctrl-C, SIGTERM and SIGHUP: a command ends soon, without a traceback and without leftovers.

The first signal raises an exception in the main thread, so that whatever is open is closed. A
second one, when that takes too long, ends the process where it is. While modules are imported the
first one does: nothing has begun by then, and an exception within the import of a C++ library can
abort the process. For the same reason the exception is raised in our own code or Python's, and not
in a function that a library in C++ may have called: such a library can take it for another error
(seen: safetensors called a file damaged, at 4 of 208 signals). Nor is it raised while a process is
being started, which would then print a traceback for want of what its parent had yet to send.
"""

import os
import signal
import stat
import sys
import time
from types import FrameType

# Only what imports quickly: until `prepare` is called, Ctrl-C prints Python's traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

# Windows has no SIGHUP.
NUMBERS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
# At Ctrl-C a terminal tells all processes, and torchrun tells its own once more.
SECONDS_OF_ONE_SIGNAL = 1.0

SECONDS_BETWEEN_TRIES = 0.01

_STARTING = tuple(
    os.path.join("multiprocessing", name)
    for name in ("popen_spawn_posix.py", "popen_spawn_win32.py", "resource_tracker.py")
)

_first: int | None = None  # the signal that came first
_first_at = 0.0


class Terminated(BaseException):
    """SIGTERM or SIGHUP; like KeyboardInterrupt, nothing that handles errors handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def prepare() -> None:
    """Handle the signals from now on, but those that are ignored, as under nohup."""
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _end_in_finalizer


def received() -> int | None:
    """The first of the signals that has come since `prepare`."""
    return _first


def hand_over() -> None:
    """Leave the signals to the system again, for the last moments of a process."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number in NUMBERS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def end_now(code: int) -> "NoReturn":
    """End the process without Python's clean-up, which may wait for threads or call C++ code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
    os._exit(code)


def leave_terminal() -> None:
    """Write to nowhere in place of a terminal that has been closed, which would be an error."""
    for stream in (1, 2):
        try:
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        except OSError:
            continue  # it was closed from the beginning


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
    """Raise what ends the command here, or try again soon, but not for ever."""
    is_library = frame is not None and "site-packages" in frame.f_code.co_filename
    is_late = time.monotonic() - _first_at > SECONDS_OF_ONE_SIGNAL
    is_unsafe = is_library or _is_importing(frame) or _is_starting_a_process(frame)
    if is_unsafe and not is_late and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _, later: _raise_where_safe(later))
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_TRIES)
        return
    raise KeyboardInterrupt if _first == signal.SIGINT else Terminated(_first or signal.SIGTERM)


def _end_in_finalizer(unraisable: "sys.UnraisableHookArgs") -> None:
    """End the command if its end was raised where Python would only report it, and go on."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated) and _first is not None:
        _end_at_once(_first)
    sys.__unraisablehook__(unraisable)


def _end_at_once(number: int) -> "NoReturn":
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    os.write(2, f"{show_cursor}tpt: {describe(number)}\n".encode())
    end_now(128 + number)


def describe(number: int) -> str:
    """How a signal is called in messages."""
    if number == signal.SIGINT:
        return "interrupted"
    return f"ended by {signal.Signals(number).name}"


def _is_importing(frame: FrameType | None) -> bool:
    return any(name.startswith("<frozen importlib") for name in _files(frame))


def _is_starting_a_process(frame: FrameType | None) -> bool:
    # Blocking the signal in the main thread is not enough: another thread may receive it, and
    # Python then runs the handler in the main thread all the same.
    return any(name.endswith(_STARTING) for name in _files(frame))


def _files(frame: FrameType | None) -> "Iterator[str]":
    """The files of the functions that are being called, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
