"""Registries of objects by name, which other packages can extend.

>>> @BINDINGS.register("mine")
... class MyBinding(Binding): ...
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import shown
from tp_transformer.foundation.settings import nearest

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
                f"there is no {self.noun} {shown(name)}{nearest(str(name), self)}; "
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
