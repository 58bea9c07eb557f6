"""The folder of a run: locked by one process, compared with the request, described."""

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tp_transformer import settings
from tp_transformer.data.store import MANIFEST, Store, open_store
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.model.bundled import find
from tp_transformer.model.checkpoint import class_of
from tp_transformer.runtime import provenance
from tp_transformer.runtime.files import atomic_write, lock
from tp_transformer.runtime.run_folder import CONFIG, LOCK, LOG, METRICS, ORIGIN, read_origin
from tp_transformer.runtime.run_folder import sha256 as file_sha256
from tp_transformer.settings import Values
from tp_transformer.training import checkpoint
from tp_transformer.training.config import (
    RunConfig,
    config_values,
    run_config,
    section_kinds,
)
from tp_transformer.training.limits import seconds

_CHANGEABLE = "training.steps, optim.cooldown, a larger training.budget and training.epochs"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `train`; None for those that an existing run has recorded."""

    run: Path
    config: RunConfig | None
    data: str | Path | None
    init_from: str | Path | None = None
    loggers: list[str] = field(default_factory=list)  # by name

    @classmethod
    def of(
        cls,
        config: RunConfig | str | Path | None,
        data: Store | str | Path | None,
        run: str | Path,
        init_from: str | Path | None = None,
        loggers: Sequence[str] = (),
    ) -> "Request":
        """Return a request from the arguments of `train`."""
        return cls(
            run=Path(run),
            config=RunConfig.of(config) if isinstance(config, str | Path) else config,
            data=data.path if isinstance(data, Store) else data,
            init_from=init_from,
            loggers=list(loggers),
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The description of a run, from the request and from what its folder has recorded.

    Attributes:
        values: all settings
        earlier: the settings before this call, if they are changed
        data: folder of the store
        data_sha256: of its manifest
        init_from: folder of the model that the run starts from
        loggers: by name
        origin: contents of run.json; empty for a new run
        notes: messages for the log
        is_damaged: whether config.yaml must be written again
    """

    values: dict[str, Values]
    earlier: dict[str, Values] | None
    data: str
    data_sha256: str
    init_from: str | None
    loggers: list[str]
    origin: dict[str, Any]
    notes: list[str]
    is_damaged: bool

    def to_json(self) -> str:
        """Return the claim as JSON, to send it to other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Claim":
        """Return what `to_json` converted."""
        return cls(**json.loads(text))


def claim(request: Request, stack: ExitStack) -> Claim:
    """Lock the folder of an existing run, and return its description.

    A new run gets its folder by `begin`, after its settings have been checked.
    """
    run = request.run
    if (run / ORIGIN).is_file():
        _lock(run, stack)
    found = resolve(request)
    if found.is_damaged:
        _write_text(run / CONFIG, settings.dump(found.earlier or found.values))
    return found


def resolve(request: Request) -> Claim:
    """Return the description of a run, without writing anything."""
    run, config = request.run, request.config
    is_begun = (run / ORIGIN).is_file()
    if not is_begun:
        _refuse_other_folder(run)
        if config is None or request.data is None:
            raise UserError(f"{run} is not a run yet: to start one, give --config and --data")
    origin = read_origin(run) if is_begun else {}
    folder = Path(request.data).resolve() if request.data is not None else Path(origin["data"])
    store, fingerprint = _open(folder), file_sha256(folder / MANIFEST)
    if config is not None:  # as many rows of the embedding as the task has tokens
        model = class_of(config.model).sized(config.model, store.task.vocabulary)
        config = replace(config, model=model)
    notes: list[str] = []
    earlier, is_damaged = config, False
    if is_begun:
        earlier, is_damaged = _recorded_config(run, config, origin, notes)
        if config is None:
            config = earlier
        _refuse_changes(run, earlier, config)
        if fingerprint != origin["data_sha256"]:
            raise UserError(f"{run} was started on other data ({origin['data']}), not {folder}")
    assert config is not None  # noqa: S101, for the type checker
    assert fingerprint is not None  # noqa: S101, for the type checker
    values, recorded = config_values(config), config_values(earlier or config)
    return Claim(
        values=values,
        earlier=recorded if settings.changed(recorded, values) else None,
        data=str(folder),
        data_sha256=fingerprint,
        init_from=_initial_model(request, origin),
        loggers=request.loggers or origin.get("loggers", []),
        origin=origin,
        notes=notes,
        is_damaged=is_damaged,
    )


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


def _initial_model(request: Request, origin: dict[str, Any]) -> str | None:
    """Return the folder of the model that a run starts from; raise if a run has another one."""
    given = None if request.init_from is None else str(find(request.init_from).absolute())
    if not origin:
        return given
    recorded = origin.get("init_from", {}).get("folder")
    if given is not None and given != recorded:
        start = "from no other model" if recorded is None else f"from {recorded}"
        raise SettingsError(f"{request.run} was started {start}, not from {given}; use a new run")
    return recorded


def begin(run: Path, stack: ExitStack) -> None:
    """Create and lock the folder of a new run."""
    run.mkdir(parents=True, exist_ok=True)
    _lock(run, stack)
    if (run / ORIGIN).is_file():
        raise FolderError(f"another process has started {run}; repeat the command to resume it")


def _lock(run: Path, stack: ExitStack) -> None:
    # A separate file, because `files.whole` locks the folder itself.
    (run / LOCK).touch()
    held = lock(run / LOCK)
    if held is None:
        raise FolderError(f"another process is training {run}")
    stack.callback(os.close, held)
    checkpoint.clear_leftovers(run)


def _recorded_config(
    run: Path, given: RunConfig | None, origin: dict[str, Any], notes: list[str]
) -> tuple[RunConfig, bool]:
    """Return the settings of an existing run, and whether config.yaml must be written again.

    A file that was changed or truncated is an error, unless the given settings restore it, or the
    process was killed while it changed the file.
    """
    file, sha256 = run / CONFIG, origin.get("config_sha256")
    found = file_sha256(file)
    if sha256 is None or found == sha256:
        return _read_config(file, sha256, notes), False
    config, changes = given, origin.get("changes", [])
    if changes and found == changes[-1]["earlier_sha256"]:
        values = settings.run_values(file, {}, section_kinds())
        for section, later in changes[-1]["settings"].items():
            values[section] = {**values.get(section, {}), **later}
        config = run_config(values)
    if config is None or _sha256(settings.dump(config_values(config))) != sha256:
        raise SettingsError(
            f"{file} was changed after the run was started; restore it, or repeat the command "
            "that started the run, with all its options, to write it again"
        )
    notes.append(f"{file} was changed after the run was started; it is restored")
    return config, True


def _read_config(file: Path, sha256: str | None, notes: list[str]) -> RunConfig:
    values = settings.run_values(file, {}, section_kinds())
    if sha256 is None and "count" not in values.get("validation", {}):
        # The last setting in the file of a run from before hashes were recorded.
        raise SettingsError(f"{file} is truncated: it does not set validation.count; restore it")
    config = run_config(values)
    absent = settings.missing(values, config_values(config))
    if absent:  # a run of an earlier version
        notes.append(f"{file} does not set {', '.join(absent)}: using the defaults")
    return config


def _refuse_changes(run: Path, old: RunConfig, new: RunConfig) -> None:
    """Raise if settings differ that cannot be changed while a run lasts."""
    before, after = config_values(old), config_values(new)
    changed = settings.changed(before, after)
    if all(_is_changeable(name, before, after) for name in changed):
        return
    found = settings.differences(before, after)
    listed = "; ".join(text.replace(", not ", f" in {run}, not ", 1) for text in found)
    raise SettingsError(
        f"{listed}; resume with the settings of the run, or use a new run (only {_CHANGEABLE} "
        "can be changed)"
    )


def _is_changeable(
    name: tuple[str, str], before: dict[str, Values], after: dict[str, Values]
) -> bool:
    if name in {("training", "steps"), ("optim", "cooldown")}:
        return True
    section, key = name
    if section != "training" or key not in {"budget", "epochs"}:
        return False
    was, now = before[section][key], after[section][key]
    if was is None or now is None:  # a limit that is absent is larger than any other
        return now is None
    return seconds(now) > seconds(was) if key == "budget" else bool(now > was)


def _open(data: str | Path) -> Store:
    try:
        return open_store(data)
    except (OSError, ValueError) as error:  # also a path that is invalid or too long
        raise UserError(f"cannot read the store of the run: {error!r:.200}") from error


def write_origin(run: Path, values: dict[str, Values], origin: dict[str, Any]) -> None:
    """Write config.yaml and run.json of a new run."""
    _write_text(run / CONFIG, settings.dump(values))
    origin = {**origin, "id": uuid.uuid4().hex[:12], "config_sha256": file_sha256(run / CONFIG)}
    # Written last: a folder with this file is a run.
    _write_text(run / ORIGIN, json.dumps(origin, indent=2) + "\n")


def write_changes(run: Path, found: Claim, step: int) -> None:
    """Record what was changed in an existing run: its settings, its loggers.

    run.json is written first and has the changed settings. If the process is killed before it has
    written config.yaml, the next one does.
    """
    origin = {"id": uuid.uuid4().hex[:12], **found.origin, "loggers": found.loggers}
    text = settings.dump(found.values)
    if found.earlier is not None:
        changed: dict[str, Values] = {}
        for (section, key), value in settings.changed(found.earlier, found.values).items():
            changed.setdefault(section, {})[key] = value
        change = {
            "time": provenance.now(),
            "step": step,
            "settings": changed,
            "earlier_sha256": file_sha256(run / CONFIG),
        }
        origin["changes"] = [*found.origin.get("changes", []), change]
        origin["config_sha256"] = _sha256(text)
    if origin != found.origin:
        _write_text(run / ORIGIN, json.dumps(origin, indent=2) + "\n")
    if found.earlier is not None:
        _write_text(run / CONFIG, text)


def write_session(run: Path, session: dict[str, Any]) -> None:
    """Record in run.json that a run is resumed: where, with which code, on what machine."""
    origin = read_origin(run)
    earlier = origin.get("resumed", [])
    if not isinstance(earlier, list):
        raise FolderError(f"{run / ORIGIN} is damaged: 'resumed' must be a list")
    origin["resumed"] = [*earlier, session]
    _write_text(run / ORIGIN, json.dumps(origin, indent=2) + "\n")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write_text(text, "utf-8", newline="\n")
