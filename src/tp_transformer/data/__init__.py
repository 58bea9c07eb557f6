"""Questions and answers: their tasks, their tokens, their files, their batches."""

from importlib import import_module
from typing import Any

# Loaded when first used: importing the package must stay quick.
_HOMES = {
    "Feed": ("feed", "Feed"),
    "generate": ("mathematics.generate", "generate"),
    "open": ("store", "open_store"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        file, function = _HOMES[name]
        return getattr(import_module(f"{__name__}.{file}"), function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
