"""Questions and answers: their symbols, their files, their batches."""

from importlib import import_module
from typing import Any

# Bound at once: importing the file `generate.py` later would put the module of that name in the
# place of the function.
from tp_transformer.data.generate import generate as generate

# Loaded when first used: importing the package must stay quick.
_HOMES = {"Feed": ("feed", "Feed"), "open": ("store", "open_store")}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        file, function = _HOMES[name]
        return getattr(import_module(f"{__name__}.{file}"), function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
