"""A store in the making: what is ordered, and the questions that are there so far.

Finished questions go to small files in a hidden folder beside the store, piece by piece, so that a
run that was killed goes on where it stopped.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyarrow import ipc

from tp_transformer.data.mathematics.modules import (
    SPLITS,
    TRAIN_SPLITS,
    modules_of,
)
from tp_transformer.data.mathematics.task import MATHEMATICS, match_modules
from tp_transformer.data.task import TRAIN
from tp_transformer.foundation.atomic import lock, whole
from tp_transformer.foundation.errors import SettingsError, StoreError
from tp_transformer.foundation.ranges import PositiveInt, Seed, check_fields

Texts = tuple[pa.StringArray, pa.StringArray]  # questions and answers


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to generate: so many questions of every matching module, split and difficulty."""

    modules: tuple[str, ...] = ("*",)
    splits: tuple[str, ...] = SPLITS
    count: PositiveInt = 1000
    test_count: PositiveInt | None = None  # the same, unless given
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for split in self.splits:
            modules_of(split)  # refuses one that does not exist
        # Each once and in the dataset's order: what is asked for twice is still wanted once.
        ordered = tuple(split for split in SPLITS if split in self.splits)
        object.__setattr__(self, "splits", ordered)
        object.__setattr__(self, "modules", tuple(dict.fromkeys(self.modules)))
        if not self.files():
            raise SettingsError(
                f"no module of {', '.join(self.splits) or 'no split'} matches "
                f"{', '.join(self.modules)}: most modules have no extrapolation"
            )

    def describe(self) -> dict[str, Any]:
        """What decides the text of the questions, as JSON holds it."""
        names = ("mathematics_dataset", "numpy", "sympy")
        versions = {name: version(name) for name in names}
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        described = {**asdict(self), "versions": {**versions, "python": python}}
        return cast(dict[str, Any], json.loads(json.dumps(described)))

    def files(self) -> "list[GeneratedFile]":
        """The files of the dataset to generate, in the order of the store."""
        test_count = self.count if self.test_count is None else self.test_count
        files = [
            GeneratedFile(split, module, self.count if split in TRAIN_SPLITS else test_count)
            for split in self.splits
            for module in match_modules(self.modules, split)
        ]
        splits = list(MATHEMATICS.splits)
        return sorted(
            files, key=lambda file: (splits.index(file.key[0]), MATHEMATICS.rank(*file.key))
        )


@dataclass(frozen=True)
class GeneratedFile:
    """One file of the dataset and how many questions it is to have."""

    split: str
    module: str
    count: int

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Where its rows go in a store: split, module and difficulty."""
        if self.split in TRAIN_SPLITS:
            return TRAIN, self.module, self.split.removeprefix("train-")
        return self.split, self.module, None


@contextmanager
def unfinished(path: Path, order: Order) -> Iterator[Path]:
    """The folder in which the pieces of a store gather; held by one process at a time."""
    folder = path.resolve().parent / f".{path.resolve().name}.generating"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").touch()
    held = lock(folder / "lock")
    if held is None:
        raise StoreError(f"another process is generating {path}")
    try:
        _refuse_another_order(folder / "order.json", order)
        yield folder
    finally:
        os.close(held)


def _refuse_another_order(file: Path, order: Order) -> None:
    wanted = order.describe()
    if not any(file.parent.glob("*.arrow")):  # nothing has been made for any order yet
        with whole(file) as made:
            made.write_text(json.dumps(wanted), "utf-8")
    begun = json.loads(file.read_text("utf-8"))
    differing = [name for name in wanted if begun.get(name) != wanted[name]]
    if differing:
        raise StoreError(
            f"{file.parent} holds an unfinished run with another {' and '.join(differing)} "
            f"({', '.join(f'{name} {begun.get(name)}' for name in differing)}): finish that run, "
            f"or delete the folder"
        )


class Pieces:
    """The questions generated so far, in files of consecutive rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[tuple[str, str], list[tuple[int, Path]]] = {}
        for path in folder.glob("*.arrow"):
            split, module, start, _ = path.name.split(".")
            self._rows.setdefault((split, module), []).append((int(start), path))
        for rows in self._rows.values():
            rows.sort()

    def add(
        self, split: str, module: str, start: int, questions: list[str], answers: list[str]
    ) -> None:
        """Keep questions of a file that begin at a row."""
        path = self._folder / f"{split}.{module}.{start}.arrow"
        table = pa.table({"question": questions, "answer": answers})
        with whole(path) as made, ipc.new_file(made, table.schema) as writer:
            writer.write_table(table)
        self._rows.setdefault((split, module), []).append((start, path))

    def count(self, file: GeneratedFile) -> int:
        """How many questions of a file are there, from the first one on."""
        done = 0
        for start, path in self._rows.get((file.split, file.module), []):
            if start == done:
                done += len(_read_piece(path)[0])
        return done

    def read(self, file: GeneratedFile) -> Iterator[Texts]:
        """The questions and answers of a file, piece by piece."""
        for _, path in self._rows.get((file.split, file.module), []):
            yield _read_piece(path)

    def questions(self, file: GeneratedFile) -> pa.ChunkedArray:
        """All questions of a file, which for 666,666 are about 50 MB."""
        return pa.chunked_array([texts[0] for texts in self.read(file)], pa.string())


def _read_piece(path: Path) -> Texts:
    table = ipc.open_file(path.read_bytes()).read_all()
    question, answer = (table[name].combine_chunks() for name in ("question", "answer"))
    return question, answer
