"""Settings: conversion of presets, YAML files and options to dataclasses; unknown keys rejected.

The settings of a section are a frozen dataclass in the module that they configure. This module
converts presets, YAML files, options such as --model.n_layers=2 and keyword arguments to such a
dataclass and back.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tp_transformer.errors import SettingsError
from tp_transformer.ranges import check, shown

Values = dict[str, Any]
T = TypeVar("T")

_LONGEST_TEXT = 1000  # characters

_SINGULARS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    NoneType: "absent",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}

SECTIONS = ("model", "data", "optim", "training", "validation")  # of a settings file


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _preset_folder().iterdir())


def read(name_or_file: str | Path) -> Values:
    """Read the settings of a preset (by its name) or of a YAML file (by its path)."""
    name = str(name_or_file)
    if name in preset_names():
        return _parse_yaml(_preset_folder().joinpath(f"{name}.yaml").read_text("utf-8"), name)
    path = Path(name_or_file)
    if path.suffix not in {".yaml", ".yml"}:
        raise SettingsError(
            f"there is no preset {name!r}{nearest(name, preset_names())}; the presets are "
            f"{', '.join(preset_names())}, and settings files end in .yaml"
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read settings from {name}: {error}") from error
    return _parse_yaml(text, name)


def run_values(
    name_or_file: str | Path, changed: Mapping[str, str], kinds: Mapping[str, Sequence[type]]
) -> dict[str, Values]:
    """Return the sections of a preset or a file, with changes such as `{"training.steps": "100"}`.

    `kinds` has the dataclasses of each section. Changes are YAML. Names are checked here, values
    when the dataclasses are created.
    """
    known = {section: _field_types(some) for section, some in kinds.items()}
    values = read(name_or_file)
    refuse_unknown(values, known, str(name_or_file))
    for section, fields in values.items():
        if not isinstance(fields, dict):
            raise SettingsError(f"{name_or_file}: {section!r} must hold named settings")
        refuse_unknown(fields, known[section], section)
    for name, text in changed.items():
        section, _, field = name.partition(".")
        refuse_unknown([section], known, "a run")
        refuse_unknown([field], known[section], section)
        values.setdefault(section, {})[field] = _parse_change(text, known[section][field])
    return values


def _field_types(kinds: Sequence[type]) -> dict[str, Any]:
    """Return the types of the fields of a section, and of the field that names one of its kinds."""
    found: dict[str, Any] = {"architecture": str} if len(kinds) > 1 else {}
    for kind in kinds:
        found |= get_type_hints(kind) | getattr(kind, "option_types", dict)()
    return found


def _parse_change(text: str, hint: Any) -> Any:
    from tp_transformer import yaml_text

    try:
        value = yaml_text.load(text)
    except yaml_text.UNREADABLE:
        value = text  # such as a single *, which is an alias in YAML
    if str(value).lower() == "none" and NoneType in get_args(hint):
        return None  # unless none is a valid text, such as the binding none
    return [value] if get_origin(hint) is tuple and isinstance(value, str) else value


def dump(values: Mapping[str, Any]) -> str:
    """Return settings as YAML."""
    from tp_transformer import yaml_text

    return yaml_text.dump(dict(values))


def missing(values: Mapping[str, Values], resolved: Mapping[str, Values]) -> list[str]:
    """Return the names of the settings that `values` lack, such as `training.steps`."""
    return [
        f"{section}.{field}"
        for section, fields in resolved.items()
        for field in fields
        if field not in values.get(section, {})
    ]


def changed(old: Mapping[str, Values], new: Mapping[str, Values]) -> dict[tuple[str, str], Any]:
    """Return the new values of the settings that differ, by section and field."""
    return {
        (section, field): new.get(section, {}).get(field)
        for section in {**old, **new}
        for field in {**old.get(section, {}), **new.get(section, {})}
        if _as_lists(old.get(section, {}).get(field)) != _as_lists(new.get(section, {}).get(field))
    }


def differences(old: Mapping[str, Values], new: Mapping[str, Values]) -> list[str]:
    """Describe the settings that differ, such as `training.steps is 100, not 200`."""
    return [
        f"{section}.{field} is {_as_text(old.get(section, {}).get(field))}, not {_as_text(now)}"
        for (section, field), now in changed(old, new).items()
    ]


def _as_lists(value: Any) -> Any:
    """Convert tuples to lists, because YAML has no tuples."""
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _as_text(value: Any) -> str:
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def to_dataclass(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a `kind` from `values`; raise for unknown keys and invalid values.

    `where` names the settings in error messages, such as `model`.
    """
    refuse_unknown(values, (field.name for field in dataclasses.fields(cast(Any, kind))), where)
    hints, bounded = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        _refuse_long_texts(f"{where}.{key}", value)
        if value is None and NoneType not in get_args(hints[key]):  # which the parser accepts
            raise SettingsError(f"{where}.{key} must have a value")
        if not isinstance(value, str):  # texts are converted to numbers first
            check(f"{where}.{key}", value, bounded[key])
    made = {key: _converted(f"{where}.{key}", value, hints[key]) for key, value in values.items()}
    return kind(**made)


def _converted(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its type has it; raise if it has another type."""
    try:
        return _fitted(value, hint)
    except TypeError:
        message = f"{name} must be {expected(hint, value)}, not {shown(value)}"
        raise SettingsError(message) from None
    except OverflowError as error:  # an integer too large for a float
        raise SettingsError(f"{name}: {error}") from error


def _fitted(value: Any, hint: Any) -> Any:
    """Return a value as its type has it: 1 as 1.0, a list as a tuple, the text 5 as a number.

    Raises:
        TypeError: if it has another type
    """
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(value, str) and not _admits_text(hint):
        value = _parse_change(value, hint)
    if origin in (Union, UnionType):
        return _fitted_to_any(value, parts)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = parts[:1] * len(value) if Ellipsis in parts else parts
        if len(kinds) == len(value):
            return tuple(_fitted(item, part) for item, part in zip(value, kinds, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {_fitted(k, parts[0]): _fitted(item, parts[1]) for k, item in value.items()}
    elif origin is Literal and isinstance(value, str) and value in parts:
        return value
    elif hint in (int, float):
        kind = Integral if hint is int else Real
        if isinstance(value, kind) and not isinstance(value, bool):
            return hint(value)
    elif origin is None and (hint is Any or isinstance(value, hint)):
        return value
    raise TypeError


def _fitted_to_any(value: Any, hints: Sequence[Any]) -> Any:
    """Return a value as the first type has it that admits it."""
    for hint in hints:
        try:
            return _fitted(value, hint)
        except TypeError:
            continue
    raise TypeError


def _admits_text(hint: Any) -> bool:
    """Whether a value of a type may be a text."""
    if get_origin(hint) in (Union, UnionType):
        return any(map(_admits_text, get_args(hint)))
    return hint in (str, Any) or get_origin(hint) is Literal


def _refuse_long_texts(name: str, value: Any) -> None:
    """Raise if a text is longer than any valid setting.

    Texts are read as YAML, whose readers fail at tens of thousands of brackets.
    """
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, str) and len(part) > _LONGEST_TEXT:
            raise SettingsError(f"{name} has a text of {len(part):,} characters, which is too long")
        if isinstance(part, dict):
            rest += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            rest += part


def expected(hint: Any, value: Any) -> str:
    """Describe the values of a type."""
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}{nearest(str(value), choices)}"
    if get_origin(hint) is tuple:
        kinds = [kind for kind in get_args(hint) if kind is not Ellipsis]
        size = f"{len(kinds)} " if len(kinds) == len(get_args(hint)) else ""
        return f"a list of {size}{_PLURALS.get(kinds[0], 'values')}"
    if get_args(hint):
        return " or ".join(expected(part, value) for part in get_args(hint))
    return _SINGULARS.get(hint, getattr(hint, "__name__", str(hint)))


def to_values(config: Any) -> Values:
    """Convert a settings dataclass to plain values for YAML or JSON."""
    return dataclasses.asdict(config)


def refuse_unknown(keys: Iterable[str], valid: Iterable[str], where: str) -> None:
    """Raise for the first unknown key, and suggest the nearest valid one."""
    known = list(valid)
    for key in keys:
        if key not in known:
            raise SettingsError(
                f"{where} has no setting {key!r}{nearest(str(key), known)}; "
                f"the settings are {', '.join(known)}"
            )


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a suggestion of the nearest valid name, or an empty text."""
    found = closest(name, valid)
    return f" (did you mean {found!r}?)" if found is not None else ""


def closest(name: str, valid: Iterable[str]) -> str | None:
    """Return the nearest valid name: one with swapped letters, or else the most similar one."""
    matches = difflib.get_close_matches(name, list(valid))
    swapped = [match for match in matches if sorted(match) == sorted(name)]
    return next(iter(swapped + matches), None)


def _preset_folder() -> Traversable:
    return resources.files("tp_transformer") / "presets"


def _parse_yaml(text: str, name: str) -> Values:
    from tp_transformer import yaml_text

    try:
        values = yaml_text.load(text)
    except yaml_text.UNREADABLE as error:
        raise SettingsError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{name} must hold named settings, such as 'model:'")
    return values
