"""The training of a model: every run that led to its weights, from what these runs recorded.

A run that starts from the weights of another (`--init-from`) continues its history. `run.json`
keeps a copy of the earlier history, so that the earlier folder is not needed later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tp_transformer import settings
from tp_transformer.data.store import MANIFEST, open_store
from tp_transformer.errors import FolderError, UserError
from tp_transformer.model.bundled import find
from tp_transformer.model.checkpoint import model_path, step_of
from tp_transformer.runtime.run_folder import (
    CONFIG,
    METRICS,
    name_of,
    read_origin,
    run_of,
    sha256,
)
from tp_transformer.training.record import VALIDATION, Record, read_records

HISTORY = "training.json"  # in the folder of a bundled model

_SESSION = (
    *("tp_transformer", "python", "torch", "numpy", "commit", "begun"),
    *("processor", "cores", "device", "n_ranks", "threads", "precision"),
)

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The training of a model in one run, up to the step of the model.

    Attributes:
        run: name of the run
        step: number of steps
        samples: number of questions trained on, repetitions included
        seconds: training time; None if it is not recorded
        core_seconds: training time times the threads of all processes; None if not recorded
        settings: all settings by section, as they were at the end
        changes: settings that were changed during the run, with their steps
        sessions: the starts of the run: time, step, commit, versions, machine, threads
        data: name, hash, source and numbers of rows of the store
        validation: loss and exact match on held-out questions at that step, and their number
    """

    run: str
    step: int
    samples: int
    seconds: float | None
    core_seconds: float | None
    settings: dict[str, Values]
    changes: list[Values]
    sessions: list[Values]
    data: Values
    validation: Values | None


@dataclass(frozen=True, kw_only=True)
class History:
    """The runs that led to a model, in their order.

    Attributes:
        stages: the runs
        unknown_start: hash of the weights that the first run started from, if their training is
            not recorded
    """

    stages: tuple[Stage, ...]
    unknown_start: str | None = None

    @property
    def samples(self) -> int:
        """The number of questions trained on in all runs."""
        return sum(stage.samples for stage in self.stages)

    @property
    def core_hours(self) -> float | None:
        """Core-hours of all runs; None if one has not recorded them."""
        seconds = [stage.core_seconds for stage in self.stages if stage.core_seconds is not None]
        return sum(seconds) / 3600 if len(seconds) == len(self.stages) else None


def history_of(folder: str | Path) -> History | None:
    """Return the training of the model in a run or a bundled folder; None if not recorded."""
    path = model_path(find(folder))
    run = run_of(path)
    if run is not None:
        return _of_run(run, path)
    file = path / HISTORY
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=History)
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged or cannot be read: {error!r:.200}") from error


def _of_run(run: Path, path: Path) -> History:
    """Return the history of a model of a run."""
    try:
        origin = read_origin(run)
        stage = _stage(run, path, origin)
        initial = origin.get("init_from", {})
        earlier = msgspec.convert(initial.get("history"), History | None)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FolderError(f"the description of {run} is damaged: {error!r:.200}") from error
    if earlier is not None:
        return History(stages=(*earlier.stages, stage), unknown_start=earlier.unknown_start)
    return History(stages=(stage,), unknown_start=initial.get("sha256"))


def _stage(run: Path, path: Path, origin: Values) -> Stage:
    step = step_of(path)
    if step is None:
        raise FolderError(f"{run} does not tell the step of its model {path}")
    values = settings.read(run / CONFIG)
    file = run / METRICS
    records = read_records(file)[0] if file.is_file() else []
    times = [each["elapsed"] for each in records if each["step"] <= step and "elapsed" in each]
    seconds = max(times, default=None)
    first = {"step": 0, "elapsed": 0.0, **{name: origin[name] for name in _SESSION}}
    sessions = [first, *origin.get("resumed", [])]
    return Stage(
        run=name_of(run),
        step=step,
        samples=step * values["data"]["batch_size"],
        seconds=seconds,
        core_seconds=_core_seconds(sessions, seconds),
        settings=values,
        changes=[
            {"step": change["step"], "settings": change["settings"]}
            for change in origin.get("changes", [])
        ],
        sessions=[session for session in sessions if session["step"] <= step],
        data=_data(origin),
        validation=_validation(records, step),
    )


def _core_seconds(sessions: Sequence[Mapping[str, Any]], seconds: float | None) -> float | None:
    """Return the sum over sessions of the time and the threads of all processes.

    A session lasts until the next one begins, which may resume from an earlier checkpoint: then the
    time since that checkpoint was lost, and does not count.
    """
    if seconds is None:
        return None
    total, end = 0.0, seconds
    for session in reversed(sessions):
        start = min(session["elapsed"], end)
        total += (end - start) * session["threads"] * session["n_ranks"]
        end = start
    return total


def _validation(records: Sequence[Record], step: int) -> Values | None:
    for record in reversed(records):
        if record["kind"] == VALIDATION and record["step"] == step:
            return {name: record[name] for name in ("loss", "exact_match", "n")}
    return None


def _data(origin: Values) -> Values:
    """Describe the store of a run; only by name and hash, if it is no longer there."""
    folder = Path(origin["data"])
    described = {"name": folder.name, "sha256": origin["data_sha256"]}
    try:
        if sha256(folder / MANIFEST) != origin["data_sha256"]:
            return described
        store = open_store(folder)
    except (OSError, UserError):
        return described
    rows = {name: len(split) for name, split in store.items()}
    return {**described, "task": store.task.name, "source": store.source, "rows": rows}
