"""Settings: dataclasses from YAML, presets by name, unknown keys refused.

A stage's settings are one frozen dataclass beside the code it configures. This file turns what
people write (a preset's name, a YAML file, keyword arguments) into such a dataclass and back.
"""

import dataclasses
import difflib
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

from tp_transformer.errors import SettingsError

Values = dict[str, Any]
T = TypeVar("T")


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


def to_dataclass(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a `kind` from `values`, refusing keys it does not have and values that do not fit.

    `where` names the settings in error messages, such as `model`.
    """
    refuse_unknown(values, (field.name for field in dataclasses.fields(cast(Any, kind))), where)
    hints = get_type_hints(kind)
    for key, value in values.items():
        if value is None and NoneType not in get_args(hints[key]):  # the parser lets it pass
            raise SettingsError(f"{where}.{key} must have a value")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, where)
    try:
        parsed = parser.parse_object({where: dict(values)})
    except ArgumentError as error:
        wrong = re.search(rf'"{re.escape(where)}\.(\w+)', str(error))
        if wrong is None:
            raise SettingsError(f"{where} does not fit: {' '.join(str(error).split())}") from error
        value = values[wrong[1]]
        expected = _described(hints[wrong[1]], value)
        raise SettingsError(f"{where}.{wrong[1]} must be {expected}, not {value!r}") from error
    return cast(T, parser.instantiate(parsed)[where])


def _described(hint: Any, value: Any) -> str:
    """What a type admits, in words."""
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}{nearest(str(value), choices)}"
    if get_args(hint):
        return " or ".join(_described(part, value) for part in get_args(hint))
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
    matches = difflib.get_close_matches(name, list(valid), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _preset_folder() -> Traversable:
    return resources.files("tp_transformer") / "presets"


def _parse_yaml(text: str, name: str) -> Values:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{name} must hold named settings, such as 'model:'")
    return values
