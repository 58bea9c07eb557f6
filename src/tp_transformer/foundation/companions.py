"""Imports that follow others: a module of this package, once another library is imported.

A library that this package extends may be imported before or after it, or never. `import_after`
does not import the library, but waits until someone else does.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def import_after(library: str, companion: str) -> None:
    """Import the module `companion` as soon as the module `library` is imported, or now if it is.

    If the companion cannot be imported, a warning says so, and the library remains usable.
    """
    if library in sys.modules:
        _import(companion)
    else:
        sys.meta_path.insert(0, _Finder(library, companion))


class _Finder:
    """Finds one module as Python would, and has its companion imported after it."""

    def __init__(self, library: str, companion: str) -> None:
        self.library, self.companion = library, companion

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the library; None for all other modules."""
        if name != self.library:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_both(module: ModuleType) -> None:
            execute(module)
            _import(self.companion)

        spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec


def _import(companion: str) -> None:
    try:
        import_module(companion)
    except ImportError as error:
        warnings.warn(f"{companion} cannot be imported: {error}", ImportWarning, stacklevel=2)
