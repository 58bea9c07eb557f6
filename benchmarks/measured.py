"""The machine and the results files of all benchmarks."""

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tp_transformer.runtime.provenance import processor
from tp_transformer.runtime.ranks import has_bfloat16

RESULTS = Path(__file__).parent / "results"


def machine(device: str = "cpu") -> dict[str, str]:
    """Return a description of the machine."""
    return {
        "processor": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "cores": str(os.cpu_count()),
        "bfloat16 in hardware": "yes" if has_bfloat16(torch.device(device)) else "no",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def described(found: dict[str, str]) -> str:
    """Describe a machine in one line."""
    return "; ".join(f"{name} {value}" for name, value in found.items())


def clock() -> float:
    """Return the processor time if there is one thread, which other processes affect less."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def precisions() -> list[str]:
    """Return the precisions that the processor supports natively."""
    is_there = has_bfloat16(torch.device("cpu"))
    return ["float32", "bfloat16"] if is_there else ["float32"]


def write(name: str, result: dict[str, Any], text: str) -> Path:
    """Write a dated result as JSON and Markdown; return the path without its suffix.

    A result of the same day and name is replaced. Who repeats a benchmark wants the new result, not
    a choice of results, and an earlier one that was committed is in the history of the repository.
    """
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{result['date']}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    stem.with_suffix(".md").write_text(text, "utf-8")
    return stem


def publish(name: str, result: dict[str, Any], text: str) -> Path:
    """Print a result and write it, as `write` does."""
    print(text)
    return write(name, result, text)
