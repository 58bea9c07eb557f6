"""What a report is made from: the runs and JSON files in some folders."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tp_transformer.data.store import MANIFEST
from tp_transformer.errors import FolderError, ResultsError, reason
from tp_transformer.model.folder import WEIGHTS
from tp_transformer.runtime import run_folder
from tp_transformer.runtime.provenance import Values

BENCH_FORMAT = "tp-transformer-bench"
BENCH = "bench.json"  # its folder has many runs and results, which its table summarises
_NOTHING_TO_REPORT = {MANIFEST, WEIGHTS}  # files of stores and model folders
_INSIDE_RUN = {  # what is not searched in a run
    *(run_folder.CHECKPOINTS, run_folder.BEST_MODELS, run_folder.BEST, run_folder.LAST),
    *(run_folder.TENSORBOARD, run_folder.ORIGIN),
}


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

    @classmethod
    def find(cls, paths: Sequence[str | Path], out: Path) -> "Inputs":
        """Find the runs and JSON files that paths are or contain."""
        inputs, seen = cls(out), set[Path]()
        for path in map(Path, paths):
            if not path.exists():
                raise FolderError(f"{path} does not exist")
            if path.is_dir():
                inputs._search(path, seen)
            elif path.resolve() not in seen:
                seen.add(path.resolve())
                inputs._add(path, is_named=True)
        return inputs

    def shown(self, path: str | Path) -> str:
        """Return a path relative to the folder of the report."""
        return Path(os.path.relpath(path, self.out)).as_posix()

    def _search(self, folder: Path, seen: set[Path]) -> None:
        """Add the runs and the .json files in a folder and below it, except hidden ones."""
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise FolderError(f"cannot read {folder}: {reason(error)}") from error
        names = {entry.name for entry in entries}
        if names & _NOTHING_TO_REPORT:
            return
        if BENCH in names and _is_bench(folder / BENCH):
            entries = [folder / BENCH]
        is_run = run_folder.ORIGIN in names
        if is_run and folder.resolve() not in seen:
            seen.add(folder.resolve())
            self.runs.append(folder)
        for entry in entries:
            if entry.name.startswith(".") or (is_run and entry.name in _INSIDE_RUN):
                continue
            if entry.is_dir() and not entry.is_symlink():
                self._search(entry, seen)
            elif entry.suffix == ".json" and entry.is_file() and entry.resolve() not in seen:
                seen.add(entry.resolve())
                self._add(entry, is_named=False)

    def _add(self, file: Path, *, is_named: bool) -> None:
        values = read_object(file)
        if not isinstance(values, str):
            self.files.append(JsonFile(file, values))
        elif is_named:
            raise ResultsError(f"{file} cannot be shown: {values}")
        else:
            self.unreadable[file] = values


def _is_bench(file: Path) -> bool:
    """Whether a file is of `tpt bench`, and not of another program."""
    values = read_object(file)
    return not isinstance(values, str) and values.get("format") == BENCH_FORMAT


def read_object(file: Path) -> Values | str:
    """Return the object in a JSON file; a text if it cannot be read, which says why."""
    try:
        values = json.loads(file.read_text("utf-8"))
    except OSError as error:
        return reason(error)
    except (ValueError, RecursionError):
        return "it is damaged or not JSON"
    return values if isinstance(values, dict) else "it has no JSON object"
