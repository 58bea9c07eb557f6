"""What a report is made from: the runs and JSON files in some folders."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tp_transformer.data.store import MANIFEST
from tp_transformer.errors import FolderError, ResultsError, reason
from tp_transformer.model.folder import WEIGHTS
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import (
    BEST,
    BEST_MODELS,
    CHECKPOINTS,
    LAST,
    ORIGIN,
    TENSORBOARD,
)

_NOT_OF_A_RUN = {CHECKPOINTS, BEST_MODELS, BEST, LAST, TENSORBOARD, ORIGIN}
BENCH_FORMAT = "tp-transformer-bench"
BENCH = "bench.json"  # its folder has many runs and results, which its table summarises
_NOTHING_TO_REPORT = {MANIFEST, WEIGHTS}  # files of stores and model folders


@dataclass(frozen=True)
class JsonFile:
    """A JSON file with an object."""

    path: Path
    values: Values


@dataclass(frozen=True)
class Inputs:
    """Runs and JSON files, in the order of the arguments and then by name.

    Attributes:
        out: the folder of the report, which its paths are relative to
        runs: run folders
        files: all JSON files with an object, of whatever kind
        unreadable: files that end in .json but cannot be read, with the reason
    """

    out: Path
    runs: list[Path] = field(default_factory=list)
    files: list[JsonFile] = field(default_factory=list)
    unreadable: dict[Path, str] = field(default_factory=dict)

    def shown(self, path: str | Path) -> str:
        """Return a path relative to the folder of the report."""
        return Path(os.path.relpath(path, self.out)).as_posix()


def gather(paths: Sequence[str | Path], out: Path) -> Inputs:
    """Find the runs and JSON files that paths are or contain."""
    found, seen = Inputs(out), set[Path]()
    for path in map(Path, paths):
        if not path.exists():
            raise FolderError(f"{path} does not exist")
        for each in _contents(path) if path.is_dir() else [path]:
            if (place := each.resolve()) in seen:
                continue
            seen.add(place)
            if each.is_dir():
                found.runs.append(each)
            else:
                _read(each, found, is_named=each == path)
    return found


def _contents(folder: Path) -> Iterator[Path]:
    """Yield the runs and the .json files in a folder and in those below it, except hidden ones."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise FolderError(f"cannot read {folder}: {reason(error)}") from error
    names = {entry.name for entry in entries}
    if names & _NOTHING_TO_REPORT:
        return
    if BENCH in names and _is_bench(folder / BENCH):
        yield folder / BENCH
        return
    is_run = ORIGIN in names
    if is_run:
        yield folder
    for entry in entries:
        if entry.name.startswith(".") or (is_run and entry.name in _NOT_OF_A_RUN):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _contents(entry)
        elif entry.suffix == ".json" and entry.is_file():
            yield entry


def _is_bench(file: Path) -> bool:
    """Whether a file is of `tpt bench`, and not of another program."""
    try:
        values = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("format") == BENCH_FORMAT


def _read(file: Path, found: Inputs, *, is_named: bool) -> None:
    try:
        values = json.loads(file.read_text("utf-8"))
        problem = None if isinstance(values, dict) else "it has no JSON object"
    except OSError as error:
        values, problem = None, reason(error)
    except (ValueError, RecursionError):
        values, problem = None, "it is damaged or not JSON"
    if problem is None:
        found.files.append(JsonFile(file, values))
    elif is_named:
        raise ResultsError(f"{file} cannot be shown: {problem}")
    else:
        found.unreadable[file] = problem
