"""Settings: dataclasses from YAML, presets by name, unknown keys refused.

A stage's settings are one frozen dataclass beside the code it configures. This file turns what
people write (a preset's name, a YAML file, options such as --model.n_layers=2, keyword arguments)
into such a dataclass and back.
"""

import dataclasses
import difflib
import json
import re
from argparse import ArgumentError
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import check, shown

Values = dict[str, Any]
T = TypeVar("T")

# What YAML raises besides its own errors: at thousands of digits, impossible dates, deep nesting.
_UNREADABLE = (ValueError, OverflowError, RecursionError)
_LONGEST_TEXT = 1000  # characters

SECTIONS = ("model", "data", "optim", "training", "validation")  # the stages a file may set


def preset_names() -> list[str]:
    """Every preset, by name."""
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
            f"{', '.join(preset_names())}, and a file of your own ends in .yaml"
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read settings from {name}: {error}") from error
    return _parse_yaml(text, name)


def run_values(
    name_or_file: str | Path, changed: Mapping[str, str], kind: type
) -> dict[str, Values]:
    """The sections of a preset or a file, with changes such as `{"training.steps": "100"}`.

    `kind` composes the settings of a run: its fields are the sections. Changes are YAML. Names are
    checked here, values when the dataclasses are made.
    """
    known = sections(kind)
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


def sections(kind: type) -> dict[str, dict[str, Any]]:
    """The fields of each section and their types; where a section is a choice, those of all."""
    found: dict[str, dict[str, Any]] = {}
    for section, hint in get_type_hints(kind).items():
        choices = get_args(hint) or (hint,)
        fields = {"architecture": str} if len(choices) > 1 else {}
        for choice in choices:
            fields |= get_type_hints(choice) | getattr(choice, "option_types", dict)()
        found[section] = fields
    return found


def _parse_change(text: str, hint: Any) -> Any:
    try:
        value = yaml.load(text, _Loader)  # noqa: S506, a safe loader
    except (yaml.YAMLError, *_UNREADABLE):
        value = text  # such as a lone *, which YAML takes for a reference
    if str(value).lower() == "none" and NoneType in get_args(hint):
        return None  # but a binding may be called none
    return [value] if get_origin(hint) is tuple and isinstance(value, str) else value


def dump(values: Mapping[str, Any]) -> str:
    """Settings as YAML that reads back as the same settings."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False)


def missing(values: Mapping[str, Values], resolved: Mapping[str, Values]) -> list[str]:
    """The settings that `values` leave to their defaults, such as `training.steps`."""
    return [
        f"{section}.{field}"
        for section, fields in resolved.items()
        for field in fields
        if field not in values.get(section, {})
    ]


def differences(old: Mapping[str, Values], new: Mapping[str, Values]) -> list[str]:
    """Every setting that differs, in words, such as `training.steps is 100, not 200`."""
    found = []
    for section in {**old, **new}:
        before, after = old.get(section, {}), new.get(section, {})
        for field in {**before, **after}:
            was, now = (_as_lists(values.get(field)) for values in (before, after))
            if was != now:
                found.append(f"{section}.{field} is {_as_text(was)}, not {_as_text(now)}")
    return found


def _as_lists(value: Any) -> Any:
    """YAML has no tuples."""
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _as_text(value: Any) -> str:
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def to_dataclass(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a `kind` from `values`, refusing keys it does not have and values that do not fit.

    `where` names the settings in error messages, such as `model`.
    """
    refuse_unknown(values, (field.name for field in dataclasses.fields(cast(Any, kind))), where)
    hints, bounded = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        _refuse_long_texts(f"{where}.{key}", value)
        if value is None and NoneType not in get_args(hints[key]):  # the parser lets it pass
            raise SettingsError(f"{where}.{key} must have a value")
        if not isinstance(value, str):  # the parser reads numbers in texts
            check(f"{where}.{key}", value, bounded[key])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, where)
    try:
        parsed = parser.parse_object({where: dict(values)})
    except (ArgumentError, OverflowError) as error:  # a whole number that no float can hold
        wrong = re.search(rf'"{re.escape(where)}\.(\w+)', str(error))
        if wrong is None:
            raise SettingsError(f"{where} does not fit: {' '.join(str(error).split())}") from error
        value = values[wrong[1]]
        admitted = expected(hints[wrong[1]], value)
        raise SettingsError(f"{where}.{wrong[1]} must be {admitted}, not {shown(value)}") from error
    return cast(T, parser.instantiate(parsed)[where])


def _refuse_long_texts(name: str, value: Any) -> None:
    """Refuse texts of a length that no setting has.

    The parser reads texts as YAML by way of libyaml, which overflows the stack when it comes upon
    tens of thousands of brackets (seen: a segmentation fault).
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
    """What a type admits, in words."""
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}{nearest(str(value), choices)}"
    if get_args(hint):
        return " or ".join(expected(part, value) for part in get_args(hint))
    words = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "absent"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def to_values(config: Any) -> Values:
    """The plain values of a settings dataclass, as YAML or JSON can hold them."""
    return dataclasses.asdict(config)


def refuse_unknown(keys: Iterable[str], valid: Iterable[str], where: str) -> None:
    """Refuse the first key that is not valid, naming the nearest one that is."""
    known = list(valid)
    for key in keys:
        if key not in known:
            raise SettingsError(
                f"{where} has no setting {key!r}{nearest(str(key), known)}; "
                f"the settings are {', '.join(known)}"
            )


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the valid name that `name` was probably meant to be, if one is near."""
    found = closest(name, valid)
    return f" (did you mean {found!r}?)" if found is not None else ""


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is nearest: one with letters swapped, or else the most similar one."""
    matches = difflib.get_close_matches(name, list(valid))
    swapped = [match for match in matches if sorted(match) == sorted(name)]
    return next(iter(swapped + matches), None)


def _preset_folder() -> Traversable:
    return resources.files("tp_transformer") / "presets"


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as people mean it; YAML 1.1 wants 1.0e-3."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads, lists in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out, each where it stands."""
        return True


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )
for _sequence in (list, tuple):
    _Dumper.add_representer(
        _sequence,
        lambda dumper, items: dumper.represent_sequence(
            "tag:yaml.org,2002:seq", items, flow_style=True
        ),
    )


def _parse_yaml(text: str, name: str) -> Values:
    try:
        values = yaml.load(text, _Loader)  # noqa: S506, a safe loader
    except (yaml.YAMLError, *_UNREADABLE) as error:
        raise SettingsError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{name} must hold named settings, such as 'model:'")
    return values
