"""Weights of modules by learning progress: the decrease of the loss of each module."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

LEAST = 0.2  # weight of a module, relative to the average
COUNT = 200  # questions of each module


def losses(
    tpt: Callable[..., float], model: Path, store: Path, modules: Iterable[str], out: Path
) -> tuple[dict[str, float], float]:
    """Return the loss of each module on training questions, and the processor seconds.

    The questions that training holds out are not among them. `tpt` runs a command of the package,
    and `out` is the file of its results.
    """
    what = ["--splits", "train", "--train-count", str(COUNT), "--diagnose", "0"]
    where = ["--model", str(model), "--data", str(store), "--out", str(out)]
    seconds = tpt("evaluate", *where, *what, "--modules", *modules)
    scores = json.loads(out.read_text("utf-8"))["splits"]["train"]["modules"]
    return {module: score["loss"] for module, score in scores.items()}, seconds


def weights(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return weights in proportion to the decrease of each loss, but at least LEAST."""
    decrease = {module: max(before[module] - loss, 0.0) for module, loss in after.items()}
    mean = sum(decrease.values()) / len(decrease)
    if not mean:
        return dict.fromkeys(decrease, 1.0)
    return {module: round(max(one / mean, LEAST), 3) for module, one in decrease.items()}
