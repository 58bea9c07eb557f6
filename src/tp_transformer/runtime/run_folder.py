"""The layout of a run folder, and what other packages read from it.

RUN/run.json         all settings; versions, commit, machine, seed and data at the start; hashes of
                     settings and data; the changes of settings; the same about each resumption
RUN/config.yaml      a copy of the settings, which can be used as --config
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

import msgspec

from tp_transformer.errors import FolderError, reason

CONFIG, ORIGIN, LOCK = "config.yaml", "run.json", ".lock"
METRICS, LOG, TENSORBOARD = "metrics.jsonl", "log.txt", "tensorboard"
_SEED = "seed-"  # the folder of a run among those of several seeds
CHECKPOINTS, BEST_MODELS, BEST, LAST = "checkpoints", "best-models", "best", "last"


def run_of(folder: str | Path) -> Path | None:
    """Return the run folder that a folder is or belongs to; None if there is none."""
    path = Path(folder).resolve()  # `last` is a link to a checkpoint
    # Checkpoints and best models are two levels below their run.
    return next((run for run in (path, *path.parents[:2]) if (run / ORIGIN).is_file()), None)


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the folder of the run of a seed, within the folder of runs with several seeds."""
    return folder / f"{_SEED}{seed}"


def seed_runs(folder: Path) -> dict[int, Path]:
    """Return the runs of several seeds in a folder, by seed."""
    runs = (path for path in folder.glob(f"{_SEED}*") if (path / ORIGIN).is_file())
    numbers = {path: path.name.removeprefix(_SEED) for path in runs}
    return {int(seed): path for path, seed in sorted(numbers.items()) if seed.isdecimal()}


def name_of(run: Path) -> str:
    """Return the name of a run: that of its folder, after that of its seeds' folder."""
    return f"{run.parent.name}/{run.name}" if run.name.startswith(_SEED) else run.name


class _InitialModel(msgspec.Struct):
    folder: str
    sha256: str


class _Origin(msgspec.Struct):
    """The fields of run.json that are read again when a run is resumed."""

    data: str
    data_sha256: str
    config_sha256: str = ""
    id: str = ""
    settings: dict[str, dict[str, Any]] | None = None  # absent in runs of earlier versions
    init_from: _InitialModel | None = None
    loggers: list[str] = []
    changes: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []


def read_origin(run: Path) -> dict[str, Any]:
    """Return the contents of `run.json`."""
    file = run / ORIGIN
    try:
        # msgspec does not decode paths that are not valid UTF-8, which Python escapes.
        origin: dict[str, Any] = json.loads(file.read_text("utf-8"))
        msgspec.convert(origin, _Origin)
    except OSError as error:
        raise FolderError(f"cannot read {file}: {reason(error)}") from error
    except msgspec.ValidationError as error:
        raise FolderError(f"{file} is damaged: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged or not JSON") from error
    return origin


def sha256(file: Path) -> str | None:
    """Return the SHA-256 of a file; None if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
