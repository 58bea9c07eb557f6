"""The layout of a run folder, and what other packages read from it.

RUN/config.yaml      all settings, including defaults; can be used as --config
RUN/run.json         versions, commit, machine, seed and data at the start; hashes of settings and
                     data; the same about each resumption
RUN/metrics.jsonl    metrics, one JSON object per line
RUN/log.txt          messages, with date and time
RUN/checkpoints/     the newest checkpoints, from which a run resumes
RUN/best-models/     the models with the best validation so far
RUN/best             link to the best model
RUN/last             link to the newest checkpoint
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tp_transformer.errors import FolderError, reason

CONFIG, ORIGIN, LOCK = "config.yaml", "run.json", ".lock"
METRICS, LOG, TENSORBOARD = "metrics.jsonl", "log.txt", "tensorboard"
_SEED = "seed-"  # the folder of a run among those of several seeds
CHECKPOINTS, BEST_MODELS, BEST, LAST = "checkpoints", "best-models", "best", "last"


def run_of(folder: str | Path) -> Path | None:
    """Return the run folder that a folder is or belongs to; None if there is none."""
    path = Path(folder).resolve()  # `last` is a link to a checkpoint
    # Checkpoints and best models are two levels below their run.
    return next((one for one in (path, *path.parents[:2]) if (one / ORIGIN).is_file()), None)


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the folder of the run of a seed, within the folder of runs with several seeds."""
    return folder / f"{_SEED}{seed}"


def seed_runs(folder: Path) -> dict[int, Path]:
    """Return the runs of several seeds in a folder, by seed."""
    found = (path for path in folder.glob(f"{_SEED}*") if (path / ORIGIN).is_file())
    numbers = {path: path.name.removeprefix(_SEED) for path in found}
    return {int(seed): path for path, seed in sorted(numbers.items()) if seed.isdecimal()}


def name_of(run: Path) -> str:
    """Return the name of a run: that of its folder, after that of its seeds' folder."""
    return f"{run.parent.name}/{run.name}" if run.name.startswith(_SEED) else run.name


def read_origin(run: Path) -> dict[str, Any]:
    """Return the contents of `run.json`."""
    file = run / ORIGIN
    try:
        origin = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {file}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged or not JSON") from error
    if not isinstance(origin, dict):
        raise FolderError(f"{file} is damaged: it must hold a JSON object")
    for name in ("data", "data_sha256"):
        if not isinstance(origin.get(name), str):
            raise FolderError(f"{file} is damaged: {name!r} must be a text")
    return origin


def sha256(file: Path) -> str | None:
    """Return the SHA-256 of a file; None if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
