"""The folder of a run: claimed by one process, checked against what is asked for, described."""

import hashlib
import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tp_transformer.data.store import MANIFEST, Store, open_store
from tp_transformer.foundation import atomic, settings
from tp_transformer.foundation.errors import FolderError, SettingsError, UserError
from tp_transformer.foundation.run_folder import CONFIG, LOCK, LOG, METRICS, ORIGIN, read_origin
from tp_transformer.foundation.run_folder import sha256 as file_sha256
from tp_transformer.foundation.settings import Values
from tp_transformer.model.family import class_of
from tp_transformer.training import checkpoint
from tp_transformer.training.config import RunConfig, config_values, run_config


def claim(run: Path, config: RunConfig | None, data: str | Path | None, stack: ExitStack) -> str:
    """Return the settings, the data and the origin of a run as JSON.

    An existing run is locked. A new run gets its folder after its settings have been checked.
    """
    is_begun = (run / ORIGIN).is_file()
    if not is_begun:
        _refuse_other_folder(run)
        if config is None or data is None:
            raise UserError(f"{run} is not a run yet: to start one, give --config and --data")
    else:
        _lock(run, stack)
    origin = read_origin(run) if is_begun else {}
    folder = Path(data).resolve() if data is not None else Path(origin["data"])
    store, fingerprint = _open(folder), file_sha256(folder / MANIFEST)
    if config is not None:  # as many rows of the embedding as the task has tokens
        model = class_of(config.model).sized(config.model, store.task.vocabulary)
        config = replace(config, model=model)
    notes: list[str] = []
    if is_begun:
        config = _same_config(run, config, origin.get("config_sha256"), notes)
        if fingerprint != origin["data_sha256"]:
            raise UserError(f"{run} was started on other data ({origin['data']}), not {folder}")
    assert config is not None  # noqa: S101, for the type checker
    plan = {
        "values": config_values(config),
        "data": str(folder),
        "data_sha256": fingerprint,
        "origin": origin,
        "notes": notes,
    }
    return json.dumps(plan)


def _refuse_other_folder(run: Path) -> None:
    """Raise if a folder contains anything but an incomplete start of a run."""
    if run.exists() and not run.is_dir():
        raise FolderError(f"{run} is a file; choose a new folder")
    names = {entry.name for entry in run.iterdir()} if run.exists() else set()
    # A run that was killed while it started: the lock is its first file.
    begun = {CONFIG, LOCK, METRICS, LOG} if LOCK in names else set()
    for name in sorted(names - begun):
        if not name.startswith("."):
            raise FolderError(f"{run} holds something else ({name}); choose a new folder")


def begin(run: Path, stack: ExitStack) -> None:
    """Create and lock the folder of a new run."""
    run.mkdir(parents=True, exist_ok=True)
    _lock(run, stack)
    if (run / ORIGIN).is_file():
        raise FolderError(f"another process has started {run}; repeat the command to resume it")


def _lock(run: Path, stack: ExitStack) -> None:
    # A separate file, because `atomic.whole` locks the folder itself.
    (run / LOCK).touch()
    held = atomic.lock(run / LOCK)
    if held is None:
        raise FolderError(f"another process is training {run}")
    stack.callback(os.close, held)
    checkpoint.clear_leftovers(run)


def _same_config(
    run: Path, config: RunConfig | None, sha256: str | None, notes: list[str]
) -> RunConfig:
    """Return the settings of an existing run; raise if other settings are given.

    A file that was changed or truncated is an error, unless the given settings restore it.
    """
    file = run / CONFIG
    if sha256 is not None and file_sha256(file) != sha256:
        text = "" if config is None else settings.dump(config_values(config))
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise SettingsError(
                f"{file} was changed after the run was started; restore it, or repeat the command "
                "that started the run, with all its options, to write it again"
            )
        _write_text(file, text)
        notes.append(f"{file} was changed after the run was started; it is restored")
    values = settings.run_values(file, {}, RunConfig)
    if sha256 is None and "count" not in values.get("validation", {}):
        # The last setting in the file of a run from before hashes were recorded.
        raise SettingsError(f"{file} is truncated: it does not set validation.count; restore it")
    begun = run_config(values)
    absent = settings.missing(values, config_values(begun))
    if absent:  # a run of an earlier version
        notes.append(f"{file} does not set {', '.join(absent)}: using the defaults")
    if config is not None:
        found = settings.differences(config_values(begun), config_values(config))
        if found:
            listed = "; ".join(one.replace(", not ", f" in {run}, not ", 1) for one in found)
            raise SettingsError(f"{listed}; resume with the settings of the run, or use a new run")
    return begun


def _open(data: str | Path) -> Store:
    try:
        return open_store(data)
    except (OSError, ValueError) as error:  # also a path that is invalid or too long
        raise UserError(f"cannot read the store of the run: {error!r:.200}") from error


def write_origin(run: Path, values: dict[str, Values], origin: dict[str, Any]) -> None:
    """Write config.yaml and run.json of a new run."""
    _write_text(run / CONFIG, settings.dump(values))
    origin = {**origin, "config_sha256": file_sha256(run / CONFIG)}
    # Written last: a folder with this file is a run.
    _write_text(run / ORIGIN, json.dumps(origin, indent=2) + "\n")


def _write_text(path: Path, text: str) -> None:
    with atomic.whole(path) as file:
        file.write_text(text, "utf-8", newline="\n")
