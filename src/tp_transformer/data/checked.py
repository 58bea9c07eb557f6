"""Validation of values read from files; an invalid value raises a ValueError that says where."""

import reprlib
from collections.abc import Collection, Set
from typing import Any

_MOST = 2**63 - 1  # the type of numbers of rows and bytes
_NAMES: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}


def check_keys(entry: Any, where: str, keys: Set[str], optional: Collection[str] = ()) -> None:
    """Raise unless a value is a mapping with these keys and no others but the optional ones."""
    if checked(entry, dict, where).keys() == keys:
        return
    for key in keys:
        if key not in entry:
            raise ValueError(f"{where} has no {key!r}")
    for key in entry:
        if key not in keys and key not in optional:
            raise ValueError(f"{where} has the unknown key {reprlib.repr(key)}")


def checked(value: Any, kind: type, where: str) -> Any:
    """Return a value if it is a mapping, list or text, as `kind` requires."""
    if type(value) is not kind:
        raise ValueError(f"{where} must be {_NAMES[kind]}, not {reprlib.repr(value)}")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(checked(text, str, f"{where}[]") for text in checked(value, list, where))


def texts_by_name(value: Any, where: str) -> dict[str, str]:
    """Return a mapping of texts."""
    entries = checked(value, dict, where).items()
    return {name: checked(text, str, f"{where}.{reprlib.repr(name)}") for name, text in entries}


def whole(value: Any, where: str, least: int = 0) -> int:
    """Return a value if it is a whole number of at least `least`."""
    if type(value) is not int or not least <= value <= _MOST:
        raise ValueError(
            f"{where} must be a whole number from {least} up, not {reprlib.repr(value)}"
        )
    return value
