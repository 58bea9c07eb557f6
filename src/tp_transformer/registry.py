"""Registries of objects by name, which other packages can extend, and the import of extensions.

Installed packages name their modules as entry points of the group `tp_transformer.extensions`. The
environment variable TPT_IMPORT names others, separated by commas: modules, or files with their .py.

>>> @BINDINGS.register("mine")
... class MyBinding(Binding): ...
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from tp_transformer.errors import SettingsError, nearest
from tp_transformer.ranges import short_repr

GROUP = "tp_transformer.extensions"
VARIABLE = "TPT_IMPORT"

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Maps names to objects of one kind; an unknown name is an error that lists the names."""

    def __init__(self, noun: str, plural: str | None = None) -> None:
        self.noun = noun
        self.plural = plural or f"{noun}s"
        self._entries: dict[str, T] = {}
        self._check: Callable[[str, T], None] = lambda _, __: None

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object under a name."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"there is a {self.noun} {name!r} already")
            self._check(name, entry)
            self._entries[name] = entry
            return entry

        return add

    def require(self, check: Callable[[str, T], None]) -> None:
        """Call a function for each entry, now and when it is registered; it raises a ValueError."""
        for name, entry in self.items():
            check(name, entry)
        self._check = check

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise SettingsError(
                f"there is no {self.noun} {short_repr(name)}{nearest(str(name), self)}; "
                f"the {self.plural} are {', '.join(self._entries)}; "
                "import the module that registers another (tpt: TPT_IMPORT)"
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_extensions() -> None:
    """Import all extensions, each once in a process."""
    for entry_point in entry_points(group=GROUP):
        entry_point.load()
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if name.endswith(".py"):
            _import_file(Path(name).resolve())
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"{VARIABLE} names {name!r}: {error}; a file needs its path and .py"
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
