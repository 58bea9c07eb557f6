"""Versions and environment, as recorded in all files of results."""

import platform
import time
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
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def now() -> str:
    """Return the local time with its offset from UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def environment(device: torch.device) -> Values:
    """Return the time, the versions and the device of a computation."""
    return {"when": now(), **versions(), "device": device.type}
