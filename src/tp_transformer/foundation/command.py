"""The command line that corresponds to a call, as files of results record it."""

import shlex
from dataclasses import fields
from typing import Any


def command_line(verb: str, *settings: Any, **options: Any) -> str:
    """Return the command of a verb with the fields of some dataclasses and further options.

    Fields that have their default value, and options that are None, are omitted.
    """
    words = ["tpt", *verb.split()]
    for name, value in options.items():
        words += _words(name, value)
    for own in settings:
        for field in fields(own):
            value = getattr(own, field.name)
            if value != field.default:
                is_switch = field.default is False  # an option without a value
                words += _words(field.name, () if is_switch else value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, str(value).lower() if isinstance(value, bool) else str(value)]
