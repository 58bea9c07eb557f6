"""Registered tasks by name: their options, and the stores of generated tasks.

Importing this module registers the tasks of the package.
"""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, field, fields, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from tp_transformer.data.mathematics import task as _mathematics  # noqa: F401
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.task import TASKS as TASKS
from tp_transformer.data.task import Row
from tp_transformer.data.tasks import lookup as _lookup  # noqa: F401
from tp_transformer.data.tasks import quotients as _quotients  # noqa: F401
from tp_transformer.data.tasks import recall as _recall  # noqa: F401
from tp_transformer.data.tasks import scan as _scan  # noqa: F401
from tp_transformer.data.writer import has_same_store, write_store
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import check_fields
from tp_transformer.settings import to_dataclass


def task_summary(name: str) -> str:
    """Return the one-line summary of a task."""
    return (TASKS[name].__doc__ or "").strip().partition("\n")[0].rstrip(".")


def task_options(name: str) -> dict[str, Field[Any]]:
    """Return the options of a task as fields with defaults; `metadata["help"]` describes them."""
    return {option.name: option for option in fields(_options_class(name))}


def resolved_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a task, checked against their types; texts are converted to numbers."""
    kind = _options_class(name)
    known = [option.name for option in fields(kind)]
    for option in (option for option in values if option not in known):
        there = ", ".join(known) or "none"
        raise SettingsError(f"the task {name} has no option {option!r}; its options are {there}")
    return asdict(to_dataclass(kind, values, "task"))


def _options_class(name: str) -> Any:
    """Return a dataclass with the keyword-only parameters of the function of a task."""
    from docstring_parser import DocstringStyle, parse

    function = TASKS[name]
    hints = get_type_hints(function, include_extras=True)
    parsed = parse(function.__doc__ or "", DocstringStyle.GOOGLE).params
    texts = {option.arg_name: " ".join((option.description or "").split()) for option in parsed}
    options: list[tuple[str, Any, Any]] = []
    for option in inspect.signature(function).parameters.values():
        if option.kind is option.KEYWORD_ONLY:
            default = MISSING if option.default is option.empty else option.default
            described = field(default=default, metadata={"help": texts.get(option.name, "")})
            options.append((option.name, hints.get(option.name, Any), described))
    checks = {"__post_init__": check_fields}
    return make_dataclass(name, options, namespace=checks, frozen=True, kw_only=True)


def write_task(folder: str | Path, name: str, *, overwrite: bool = False, **options: Any) -> Store:
    """Generate the questions of a registered task in memory, and write its store.

    The rows of a module are shuffled, because training holds out the last ones for validation. A
    different store in the folder is an error, unless `overwrite` is true.
    """
    chosen = resolved_options(name, options)
    task = TASKS[name](**chosen)
    if task.rows is None:
        raise SettingsError(f"the task {name} is not generated as a whole")
    source = {"kind": "generated", "task": name, **chosen}
    if has_same_store(Path(folder), source, overwrite=overwrite):
        return open_store(folder)
    by_module: dict[tuple[str, str], list[Row]] = {}
    for row in task.rows():
        by_module.setdefault((row.split, row.module), []).append(row)
    with write_store(folder, task, source) as writer:
        rng = np.random.default_rng(0)
        for (split, module), rows in by_module.items():
            shuffled = [rows[index] for index in rng.permutation(len(rows)).tolist()]
            questions, answers = [r.question for r in shuffled], [r.answer for r in shuffled]
            writer.append(split, module, None, questions, answers)
    return open_store(folder)
