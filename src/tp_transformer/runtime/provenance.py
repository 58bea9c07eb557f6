"""Versions, machine and environment, as recorded in runs and in all files of results."""

import os
import platform
import shlex
import subprocess
import time
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tp_transformer import __version__

Values = dict[str, Any]


def versions() -> Values:
    """Return the versions of the software that affects results."""
    return {
        "tp_transformer": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def now() -> str:
    """Return the local time with its offset from UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def processor() -> str:
    """Return the name of the processor, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def machine() -> Values:
    """Return the processor and its number of cores."""
    return {"processor": processor() or platform.machine(), "cores": os.cpu_count()}


@cache  # the code that runs is that of the first call
def commit() -> str | None:
    """Return the commit of the source of the package; None if it is not in a git checkout.

    `-modified` is appended if tracked files differ from the commit.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed inside a checkout of something else
    head = _git("rev-parse", "HEAD")
    return f"{head}-modified" if head and _git("status", "--porcelain", "-uno", ":/") else head


def _git(*arguments: str) -> str | None:
    """Return what a git command prints in the folder of this file; None if it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        process = subprocess.run(  # noqa: S603, fixed arguments
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def environment(device: torch.device) -> Values:
    """Return the time, the versions and the device of a computation."""
    return {"when": now(), **versions(), "device": device.type}


def command_line(verb: str, *settings: Any, **options: Any) -> str:
    """Return the command of a verb with the fields of some dataclasses and further options.

    Fields that have their default value, and options that are None, are omitted.
    """
    words = ["tpt", *verb.split()]
    for name, value in options.items():
        words += _words(name, value)
    for options_of in settings:
        for field in fields(options_of):
            value = getattr(options_of, field.name)
            if value != field.default:
                is_switch = field.default is False  # an option without a value
                words += _words(field.name, () if is_switch else value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, str(value).lower() if isinstance(value, bool) else str(value)]
