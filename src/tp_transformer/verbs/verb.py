"""What a verb is, and what several of them share."""

import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jsonargparse import Namespace

Arguments = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Verb:
    """A verb: what it does, and the function that does it with its arguments, or further verbs."""

    help: str
    run: Callable[[Namespace], None] | None = None
    arguments: Arguments = field(default_factory=dict)
    verbs: "dict[str, Verb]" = field(default_factory=dict)
    takes_settings: bool = False  # such as --model.n_layers=2, as `options.settings`
    goes_on: bool = False  # given again after it was stopped, where it stopped


MODEL = {"type": Path | None, "help": "the folder of a model or a run"}
DEVICE = {"choices": ["auto", "cpu", "cuda", "mps"], "default": "auto"}
MODULES = {
    "nargs": "+",
    "default": ["*"],
    "help": "only these modules; `*` stands for any characters, as in 'arithmetic__*'",
}


def arguments_of(kind: type) -> Arguments:
    """Return an argument for each field of a dataclass, with the help from its docstrings."""
    described = {}
    for base in reversed(kind.__mro__):
        listed = inspect.getdoc(base) if dataclasses.is_dataclass(base) else None
        _, _, attributes = (listed or "").partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): ((?:.|\n     +)*)", attributes, re.MULTILINE):
            described[name] = " ".join(text.split())
    hints = get_type_hints(kind, include_extras=True)
    found: Arguments = {}
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        argument: dict[str, Any] = {"default": each.default, "help": described[each.name]}
        literal = next((one for one in (hint, *get_args(hint)) if get_origin(one) is Literal), None)
        if literal is not None:
            argument["choices"] = list(get_args(literal))
        elif any(get_origin(one) is Sequence for one in (hint, *get_args(hint))):
            argument["nargs"] = "+"
        else:
            argument["type"] = hint
        found[f"--{each.name.replace('_', '-')}"] = argument
    return found


def complain(line: str) -> None:
    """Say what is wrong; once, where torchrun has started several processes on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tpt: {line}", file=sys.stderr)
