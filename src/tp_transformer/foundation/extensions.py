"""Modules that extend the registries of the package, for `tpt`.

Installed packages name theirs as entry points of the group `tp_transformer.extensions`. The
environment variable TPT_IMPORT names others, separated by commas: modules, or files with their .py.
"""

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tp_transformer.foundation.errors import SettingsError

GROUP = "tp_transformer.extensions"
VARIABLE = "TPT_IMPORT"


def load_extensions() -> None:
    """Import all extensions, each once in a process."""
    for entry_point in entry_points(group=GROUP):
        entry_point.load()
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if name.endswith(".py"):
            _import_file(Path(name).resolve())
        else:
            _import_module(name)


def _import_module(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and lacks another
        raise SettingsError(
            f"{VARIABLE} names {name!r}, but there is no such module; a file needs its path and .py"
        ) from error


@cache
def _import_file(path: Path) -> None:
    if not path.is_file():
        raise SettingsError(f"{VARIABLE} names {path}, but there is no such file")
    if path.stem in sys.modules:
        raise SettingsError(
            f"{VARIABLE}: rename {path}, as there is a module {path.stem!r} already"
        )
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018, for the type checker
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
