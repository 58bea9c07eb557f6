"""Tasks, vocabularies, stores of questions and answers, and batches.

- `vocabulary`, `task`: tokens; the tokens, modules and splits of a set of questions
- `store`, `writer`: reading, verifying and writing stores
- `sampling`: the batches of a store by step, and the rows held out for validation
- `readers`: files of questions and archives, in blocks
- `pairs`, `pair_options`: pairs of your own, from files to a store
- `generated`, `tasks`: the tasks of the package and their options
- `export`: stores in formats of other tools
- `mathematics`: the Mathematics Dataset, read and generated
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tp_transformer.data.generated import write_task as write_task
    from tp_transformer.data.mathematics.produce import generate as generate
    from tp_transformer.data.pair_options import Columns as Columns
    from tp_transformer.data.pairs import prepare as prepare
    from tp_transformer.data.sampling import Feed as Feed
    from tp_transformer.data.store import Example as Example
    from tp_transformer.data.store import Split as Split
    from tp_transformer.data.store import Store as Store
    from tp_transformer.data.store import open_store as open  # noqa: A004, F401

# Imported on first use, so that importing the package is fast.
_HOMES = {
    "Columns": ("pair_options", "Columns"),
    "Example": ("store", "Example"),
    "Feed": ("sampling", "Feed"),
    "Split": ("store", "Split"),
    "Store": ("store", "Store"),
    "generate": ("mathematics.produce", "generate"),
    "open": ("store", "open_store"),
    "prepare": ("pairs", "prepare"),
    "write_task": ("generated", "write_task"),
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            file, function = _HOMES[name]
            return getattr(import_module(f"{__name__}.{file}"), function)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
