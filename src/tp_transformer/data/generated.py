"""Registered tasks by name: their options, and the stores of generated tasks.

Importing this module registers the tasks of the package.
"""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, make_dataclass
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
from tp_transformer.data.writer import is_written, refuse_other_store, write_store
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import check_fields
from tp_transformer.foundation.settings import to_dataclass


@dataclass(frozen=True)
class TaskOption:
    """An option of a task: its type, its default (`MISSING` if it has none), its description."""

    type: Any
    default: Any
    help: str


def task_summary(name: str) -> str:
    """Return the one-line summary of a task."""
    return (TASKS[name].__doc__ or "").strip().partition("\n")[0].rstrip(".")


def task_options(name: str) -> dict[str, TaskOption]:
    """Return the options of a task: the keyword-only parameters of its function."""
    from docstring_parser import DocstringStyle, parse

    function = TASKS[name]
    hints = get_type_hints(function, include_extras=True)
    parsed = parse(function.__doc__ or "", DocstringStyle.GOOGLE)
    described = {
        each.arg_name: " ".join((each.description or "").split()) for each in parsed.params
    }
    return {
        each.name: TaskOption(
            hints.get(each.name, Any),
            MISSING if each.default is each.empty else each.default,
            described.get(each.name, ""),
        )
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    }


def resolved_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a task, checked against their types; texts are converted to numbers."""
    known = task_options(name)
    for option in given:
        if option not in known:
            there = ", ".join(known) or "none"
            raise SettingsError(
                f"the task {name} has no option {option!r}; its options are {there}"
            )
    fields = [
        (key, each.type) if each.default is MISSING else (key, each.type, each.default)
        for key, each in known.items()
    ]
    checks = {"__post_init__": check_fields}
    kind = make_dataclass(name, fields, namespace=checks, frozen=True, kw_only=True)
    return asdict(to_dataclass(kind, given, "task"))


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
    if not overwrite:
        refuse_other_store(Path(folder), source)
    if is_written(Path(folder), source):
        return open_store(folder)
    by_module: dict[tuple[str, str], list[Row]] = {}
    for row in task.rows():
        by_module.setdefault((row.split, row.module), []).append(row)
    with write_store(folder, task, source) as writer:
        rng = np.random.default_rng(0)
        for (split, module), rows in by_module.items():
            order = rng.permutation(len(rows)).tolist()
            questions = [rows[place].question for place in order]
            answers = [rows[place].answer for place in order]
            writer.append(split, module, None, questions, answers)
    return open_store(folder)
