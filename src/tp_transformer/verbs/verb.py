"""What a verb is, and what several of them share."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


def complain(line: str) -> None:
    """Say what is wrong; once, where torchrun has started several processes on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tpt: {line}", file=sys.stderr)
