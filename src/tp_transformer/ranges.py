"""Types of settings: numbers within a range, names of devices and precisions; conversion to them.

Settings and options are annotated with the types below, which are plain `int` and `float` to a type
checker. msgspec converts values to them and checks their ranges. A public dataclass of settings
calls `check_fields(self)` in its `__post_init__`, for those who construct it in Python.
"""

import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tp_transformer.errors import SettingsError, nearest

LARGEST_INT = 2**63 - 1  # of integers in numpy, torch and msgspec
# Products of two such numbers are still finite in float32.
LARGEST_FLOAT = 1e15

Count = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
# A number of things that are in memory all at a time: weights, samples, workers' tasks.
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Depth = Annotated[int, Meta(ge=1, le=10_000)]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
Seed32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]  # where scikit-learn uses it
Port = Annotated[int, Meta(ge=0, le=65_535)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST_FLOAT)]
NonNegative = Annotated[float, Meta(ge=0, le=LARGEST_FLOAT)]
Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
OpenShare = Annotated[float, Meta(gt=0, lt=1)]
Beams = Annotated[int, Meta(ge=1, le=100)]  # more are slow and not useful
LengthPenalty = Annotated[float, Meta(ge=0, le=10)]  # keeps lengths to this power finite
AnswerLength = Annotated[int, Meta(ge=1, le=10_000)]
ThinkingSteps = Annotated[int, Meta(ge=0, le=10_000)]
Workers = Annotated[int, Meta(ge=1, le=1024)]
Layer = Annotated[int, Meta(ge=-10_000, le=10_000)]  # negative: counted from the end

Device = Literal["auto", "cpu", "cuda", "mps"]  # see `choose_device`
Precision = Literal["float32", "bfloat16", "int8"]  # of inference

_SINGULARS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxlevel = 3


def convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to a type: 1 to 1.0, a list to a tuple, the text 5 to a number.

    Raises:
        SettingsError: if the type does not admit the value; the message is one line with the name
    """
    return _convert(name, value, hint, strict=not isinstance(value, str))


def check(name: str, value: Any, hint: Any) -> None:
    """Raise if a type does not admit a value; texts are not converted."""
    _convert(name, value, hint, strict=True)


def check_fields(config: Any) -> None:
    """Raise if a number or a choice in a dataclass is not one that the type of its field admits."""
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        if _is_limited(hint):
            check(name, getattr(config, name), hint)


def short_repr(value: Any) -> str:
    """Return a value as a text of limited length, for messages."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    try:
        return _REPR.repr(value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return f"a {type(value).__name__} with numbers too large to show"


def _convert(name: str, value: Any, hint: Any, *, strict: bool) -> Any:
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    try:
        converted = msgspec.convert(value, hint, strict=strict, dec_hook=_convert_custom)
    except msgspec.ValidationError as error:
        for element_name, element, element_hint in _elements(name, value, _without_none(hint)):
            _convert(element_name, element, element_hint, strict=strict)
        if not strict and _is_numeric(hint):
            value = _number(value)
        raise SettingsError(
            f"{name} must be {_allowed(hint, value)}, not {short_repr(value)}"
        ) from error
    return tuple(converted) if isinstance(converted, list) else converted


def _convert_custom(kind: type, value: Any) -> Any:
    """Convert to a type that msgspec does not know."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind):
        raise TypeError
    return value


def _elements(name: str, value: Any, hint: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the numbers in a list or a mapping, with their names and types."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list | tuple) and _is_numeric(args[0]):
        hints = args[:1] * len(value) if Ellipsis in args else args
        if len(hints) == len(value):
            for element, element_hint in zip(value, hints, strict=True):
                yield name, element, element_hint
    elif origin is dict and isinstance(value, Mapping):
        for key, element in value.items():
            if isinstance(key, str):
                yield f"{name}.{key}", element, args[1]


def _allowed(hint: Any, value: Any) -> str:
    """Describe the values that a type admits, for a message about a value that it rejects."""
    hint = _without_none(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = args[0]
        number = int if kind is int else int | float
        is_number = isinstance(value, number) and not isinstance(value, bool)
        return _range(args[1], value) if is_number else _allowed(kind, value)
    if origin is Literal:
        choices = [str(choice) for choice in args]
        return f"one of {', '.join(choices)}{nearest(str(value), choices)}"
    if origin is tuple:
        size = "" if Ellipsis in args else f"{len(args)} "
        kind = get_args(args[0])[0] if get_origin(args[0]) is Annotated else args[0]
        return f"a list of {size}{_PLURALS.get(kind, 'values')}"
    if origin in (Union, UnionType):
        return " or ".join(_allowed(part, value) for part in args)
    kind = origin or hint
    return _SINGULARS.get(kind, getattr(kind, "__name__", str(kind)))


def _range(limits: Any, value: float) -> str:
    """Describe a range, for a message about a number outside of it."""
    least = f"above {limits.gt}" if limits.gt is not None else f"{limits.ge} or more"
    if limits.le in (LARGEST_INT, LARGEST_FLOAT):  # not mentioned unless exceeded
        return f"at most {limits.le}" if value > limits.le else least
    if limits.lt is not None:
        return f"{least} and below {limits.lt}"
    return f"from {limits.ge} to {limits.le}"


def _without_none(hint: Any) -> Any:
    """Return the type of an optional value; any other type unchanged."""
    args = get_args(hint)
    others = [part for part in args if part is not NoneType]
    return others[0] if len(others) == 1 < len(args) else hint


def _is_numeric(hint: Any) -> bool:
    hint = _without_none(hint)
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return kind in (int, float)


def _is_limited(hint: Any) -> bool:
    """Whether a type, or one within it, is a range or a list of choices."""
    if get_origin(hint) in (Annotated, Literal):
        return True
    return any(map(_is_limited, get_args(hint)))


def _number(text: str) -> Any:
    """Return the number that a text has; the text if it has none, or one that is too long."""
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if kind is int or math.isfinite(number) else text
    return text
