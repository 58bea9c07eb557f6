"""Validation of values of JSON files; an invalid value raises a ValueError that says where."""

import re
import reprlib
from array import array
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST = 2**63 - 1  # the type of numbers of rows and bytes
_NAMES: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
# Metadata of a field that older files lack, and of one that is not in a file.
IN_NEWER, NOT_SAVED = {"saved": "in newer"}, {"saved": "never"}


def checked(value: Any, kind: type, where: str) -> Any:
    """Return a value if it is a mapping, list or text, as `kind` requires."""
    if type(value) is not kind:
        raise ValueError(f"{where} must be {_NAMES[kind]}, not {reprlib.repr(value)}")
    return value


def read_as(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as a type: a dataclass, a tuple or mapping of a type, a text, a number.

    Numbers are whole and at least 0, or the least value of their range. `where` names the value in
    messages. A dataclass may have a classmethod `from_json` of its own.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:
        return None if value is None else read_as(parts[0], value, where)
    if origin is Annotated:
        return _whole(value, where, parts[1].least)
    if origin is tuple:
        items = checked(value, list, where)
        if get_origin(parts[0]) is Annotated:
            return _whole_numbers(items, where)
        return tuple(read_as(parts[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin in (dict, Mapping):
        entries = checked(value, dict, where).items()
        return {key: read_as(parts[1], entry, _below(where, key)) for key, entry in entries}
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if is_dataclass(kind):
        return read_fields(cast(type, kind), value, where)
    return value if kind is Any else checked(value, kind, where)


def read_fields(kind: type[T], value: Any, where: str) -> T:
    """Return a mapping as a dataclass; raise for missing and unknown keys and invalid values."""
    hints, optional = _saved_fields(cast(Any, kind))
    whole = where or "it"
    if checked(value, dict, whole).keys() != hints.keys():
        for key in hints:
            if key not in value and key not in optional:
                raise ValueError(f"{whole} has no {key!r}")
        for key in value:
            if key not in hints:
                raise ValueError(f"{whole} has the unknown key {reprlib.repr(key)}")
    values = {
        key: read_as(hints[key], value[key], _below(where, key)) for key in hints if key in value
    }
    return kind(**values)


@cache
def _saved_fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of the fields of a dataclass, and the names of those that may be absent."""
    hints = get_type_hints(kind, include_extras=True)
    saved = {each.name: each.metadata.get("saved") for each in fields(kind)}
    types = {name: hints[name] for name, when in saved.items() if when != "never"}
    return types, {name for name, when in saved.items() if when == "in newer"}


def _below(where: str, key: str) -> str:
    name = key if re.fullmatch(r"[\w-]{1,50}", key) else reprlib.repr(key)
    return f"{where}.{name}" if where else name


def _whole(value: Any, where: str, least: int) -> int:
    if type(value) is not int or not least <= value <= _MOST:
        shown = reprlib.repr(value)
        raise ValueError(f"{where} must be a whole number from {least} up, not {shown}")
    return value


def _whole_numbers(values: list[Any], where: str) -> tuple[int, ...]:
    try:
        return tuple(array("Q", values))  # a fast check: integers of at least 0
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{where} must be whole numbers from 0 up: {error}") from error
