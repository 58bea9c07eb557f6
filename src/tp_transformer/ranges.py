"""Types of settings: numbers within a range with their checks, names of devices and precisions.

Settings are annotated with the types below, which are plain `int` and `float` to a type checker. A
dataclass of settings calls `check_fields(self)` in its `__post_init__`; the command line calls
`check` with the type of each argument.
"""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Optional, get_args, get_origin, get_type_hints

from tp_transformer.errors import SettingsError

LARGEST_INT = 2**63 - 1  # of integers in numpy and torch
# Products of two such numbers are still finite in float32.
LARGEST_FLOAT = 1e15


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; an open end excludes the bound."""

    least: float
    most: float
    open_below: bool = False
    open_above: bool = False

    def admits(self, value: float) -> bool:
        """Whether a number is in the range; NaN is not."""
        return (self.least < value if self.open_below else self.least <= value) and (
            value < self.most if self.open_above else value <= self.most
        )

    def describe(self, value: float) -> str:
        """Describe the range, for a message about a value outside of it."""
        below = f"above {self.least}" if self.open_below else f"{self.least} or more"
        if self.most in (LARGEST_INT, LARGEST_FLOAT):  # not mentioned unless exceeded
            return f"at most {self.most}" if value > self.most else below
        if self.open_below or self.open_above:
            return f"{below} and {'below' if self.open_above else 'at most'} {self.most}"
        return f"from {self.least} to {self.most}"


Count = Annotated[int, Range(0, LARGEST_INT)]
PositiveInt = Annotated[int, Range(1, LARGEST_INT)]
# A number of things that are in memory all at a time: weights, samples, workers' tasks.
Size = Annotated[int, Range(1, 2**31 - 1)]
Depth = Annotated[int, Range(1, 10_000)]
Seed = Annotated[int, Range(0, 2**64 - 1)]
Seed32 = Annotated[int, Range(0, 2**32 - 1)]  # where scikit-learn uses it
Port = Annotated[int, Range(0, 65_535)]
Positive = Annotated[float, Range(0, LARGEST_FLOAT, open_below=True)]
NonNegative = Annotated[float, Range(0, LARGEST_FLOAT)]
Share = Annotated[float, Range(0, 1)]
ShareBelowOne = Annotated[float, Range(0, 1, open_above=True)]
Beams = Annotated[int, Range(1, 100)]  # more are slow and not useful
LengthPenalty = Annotated[float, Range(0, 10)]  # keeps lengths to this power finite
AnswerLength = Annotated[int, Range(1, 10_000)]
Workers = Annotated[int, Range(1, 1024)]
Layer = Annotated[int, Range(-10_000, 10_000)]  # negative: counted from the end
OpenShare = Annotated[float, Range(0, 1, open_below=True, open_above=True)]

Device = Literal["auto", "cpu", "cuda", "mps"]  # see `choose_device`
Precision = Literal["float32", "bfloat16", "int8"]  # of inference

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxlevel = 3


def check_fields(config: Any) -> None:
    """Raise if a field of a dataclass is outside the range of its type."""
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        check(name, getattr(config, name), hint)


def check(name: str, value: Any, hint: Any) -> None:
    """Raise if a value is outside the range of its type; types without a range are ignored.

    The elements of tuples, dictionaries and optional types are checked.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if isinstance(parts[1], Range):
            _refuse_outside(name, value, *parts[:2])
    elif origin is tuple and isinstance(value, list | tuple) and Ellipsis not in parts:
        for item, part in zip(value, parts, strict=False):
            check(name, item, part)
    elif origin is dict and isinstance(value, Mapping):
        for key, item in value.items():
            check(f"{name}.{key}", item, parts[1])
    elif type(None) in parts and value is not None:
        for part in parts:
            check(name, value, part)


def without_range(hint: Any) -> Any:
    """Return a type, optional or not, without its range, as help texts show it."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return parts[0]
    return Optional[without_range(parts[0])] if type(None) in parts[1:] else hint  # noqa: UP045


def shown(value: Any) -> str:
    """Return a value as a text of limited length, for messages."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    try:
        return _REPR.repr(value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return f"a {type(value).__name__} with numbers too large to show"


def _refuse_outside(name: str, value: Any, kind: type, admitted: Range) -> None:
    whole = kind is int
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number:
        raise SettingsError(
            f"{name} must be a {'whole ' if whole else ''}number, not {shown(value)}"
        )
    if not admitted.admits(value):
        raise SettingsError(f"{name} must be {admitted.describe(value)}, not {shown(value)}")
