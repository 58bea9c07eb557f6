"""Settings: from presets, YAML files and options to values, and from values to dataclasses.

The settings of a section are a frozen dataclass in the module that they configure. Presets, YAML
files and options such as --model.n_layers=2 become values, one dictionary per section; `ranges.py`
converts the values of a section to its dataclass. Unknown names are rejected.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from tp_transformer.errors import SettingsError
from tp_transformer.errors import nearest as nearest
from tp_transformer.ranges import convert

Values = dict[str, Any]
Kinds = Mapping[str, Sequence[type]]  # the dataclasses of each section; several of the model
T = TypeVar("T")

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
    name_or_file: str | Path, texts: Mapping[str, str], kinds: Kinds
) -> dict[str, Values]:
    """Return the sections of a preset or a file, with options such as `{"training.steps": "100"}`.

    The texts of options are YAML. Names are checked here, values when the dataclasses are created.
    """
    hints = {section: _field_types(section_kinds) for section, section_kinds in kinds.items()}
    values = read(name_or_file)
    require_known(values, hints, str(name_or_file))
    for section, fields in values.items():
        if not isinstance(fields, dict):
            raise SettingsError(f"{name_or_file}: {section!r} must hold named settings")
        require_known(fields, hints[section], section)
    changes: dict[str, Values] = {}
    for name, text in texts.items():
        section, _, field = name.partition(".")
        require_known([section], hints, "a run")
        require_known([field], hints[section], section)
        changes.setdefault(section, {})[field] = _parse_option(text, hints[section][field])
    return override(values, changes, kinds)


def override(
    values: Mapping[str, Values], changes: Mapping[str, Mapping[str, Any]], kinds: Kinds
) -> dict[str, Values]:
    """Return sections with changes.

    A dataclass may have a static method `inherited(fields, changes)`, which returns the fields that
    still apply after the changes, such as those of another optimizer.
    """
    result = dict(values)
    for section, changed_fields in changes.items():
        fields = dict(values.get(section, {}))
        for kind in kinds.get(section, ()):
            if hasattr(kind, "inherited"):
                fields = kind.inherited(fields, changed_fields)
        result[section] = {**fields, **changed_fields}
    return result


def _field_types(section_kinds: Sequence[type]) -> dict[str, Any]:
    """Return the types of the fields of a section, and of the field that names one of its kinds."""
    hints: dict[str, Any] = {"architecture": str} if len(section_kinds) > 1 else {}
    for kind in section_kinds:
        hints |= get_type_hints(kind) | getattr(kind, "option_types", dict)()
    return hints


def _parse_option(text: str, hint: Any) -> Any:
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
    require_known(values, (field.name for field in dataclasses.fields(cast(Any, kind))), where)
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: convert(f"{where}.{name}", values[name], hints[name]) for name in values}
    return kind(**fields)


def to_values(config: Any) -> Values:
    """Convert a settings dataclass to plain values for YAML or JSON."""
    return dataclasses.asdict(config)


def require_known(names: Iterable[str], valid: Iterable[str], where: str) -> None:
    """Raise for the first unknown name, and suggest the nearest valid one."""
    known = list(valid)
    for name in names:
        if name not in known:
            raise SettingsError(
                f"{where} has no setting {name!r}{nearest(str(name), known)}; "
                f"the settings are {', '.join(known)}"
            )


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
