"""When a run ends: its limits, its completed share, and the time that is left."""

import math
import re
from collections import deque
from dataclasses import dataclass

from tp_transformer.errors import SettingsError

RECENT = 180.0  # seconds of training whose speed the time left is computed from
_SECONDS_BETWEEN_POINTS = 1.0


def seconds(text: str) -> float:
    """Convert a duration such as `90s`, `45min`, `2h` or `1d12h` to seconds."""
    units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
    number = r"(\d+(?:\.\d*)?)"
    match = re.fullmatch("".join(rf"(?:{number}\s*{unit}\s*)?" for unit in units), text.strip())
    total = sum(
        float(amount or 0) * size
        for amount, size in zip(match.groups() if match else (), units.values(), strict=False)
    )
    if not 0 < total < math.inf:
        raise SettingsError(
            f"{text!r} is not a positive duration; examples: 90s, 45min, 2h, 1d12h "
            "(units d, h, min, s)"
        )
    return total


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run; None for a limit that is absent."""

    steps: int | None
    epochs: float | None
    budget: float | None  # seconds
    batch_size: int
    n_rows: int  # of an epoch

    def progress(self, step: int, elapsed: float) -> float:
        """Return the completed share of the run: the largest of the shares of its limits."""
        shares = (
            step / self.steps if self.steps else 0.0,
            step * self.batch_size / self.n_rows / self.epochs if self.epochs else 0.0,
            elapsed / self.budget if self.budget else 0.0,
        )
        return min(max(shares), 1.0)

    @property
    def last_step(self) -> int | None:
        """The number of steps after which the run ends, unless its time is up before."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(math.ceil(self.epochs * self.n_rows / self.batch_size))
        return min(ends, default=None)

    def time_left(self, step: int, elapsed: float, steps_per_second: float | None) -> float | None:
        """Return the seconds until the first limit is reached; None if nothing is known yet."""
        left = [] if self.budget is None else [self.budget - elapsed]
        if steps_per_second and self.last_step is not None:
            left.append((self.last_step - step) / steps_per_second)
        return max(min(left), 0.0) if left else None


class RecentSpeed:
    """The speed of a run in its last few minutes.

    The speed of a shared machine changes, and the mean over the whole run would follow slowly.
    """

    def __init__(self, window: float = RECENT) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()  # seconds of training, steps

    def add(self, elapsed: float, step: int) -> None:
        """Add the number of steps at a time."""
        if self._points and elapsed - self._points[-1][0] < _SECONDS_BETWEEN_POINTS:
            return
        self._points.append((elapsed, step))
        while len(self._points) > 2 and elapsed - self._points[1][0] >= self._window:
            self._points.popleft()

    def steps_per_second(self, elapsed: float, step: int) -> float | None:
        """Return the mean speed from the start of the window to now; None if there is none yet."""
        if not self._points or elapsed <= self._points[0][0] or step <= self._points[0][1]:
            return None
        return (step - self._points[0][1]) / (elapsed - self._points[0][0])
