"""A store that is being generated: the request, and the questions generated so far.

Finished questions are written to small files in a hidden folder beside the store, so that
generation can be resumed after it was killed.
"""

import json
import os
import sys
from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from tp_transformer.data.mathematics.modules import SPLITS, STORE_PLACES, TRAIN_SPLITS, modules_of
from tp_transformer.data.mathematics.task import MATHEMATICS, match_modules
from tp_transformer.foundation.atomic import lock, whole, write_json
from tp_transformer.foundation.errors import SettingsError, StoreError
from tp_transformer.foundation.ranges import PositiveInt, Seed, check_fields

Texts = tuple[pa.StringArray, pa.StringArray]  # questions and answers


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to generate: a number of questions of each matching module, split and difficulty."""

    modules: tuple[str, ...] = ("*",)
    splits: tuple[str, ...] = SPLITS
    count: PositiveInt = 1000
    test_count: PositiveInt | None = None  # the same number, unless given
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for split in self.splits:
            modules_of(split)  # raises if one does not exist
        # Without duplicates, in the order of the dataset.
        ordered = tuple(split for split in SPLITS if split in self.splits)
        object.__setattr__(self, "splits", ordered)
        object.__setattr__(self, "modules", tuple(dict.fromkeys(self.modules)))
        if not self.files():
            raise SettingsError(
                f"no module of {', '.join(self.splits) or 'no split'} matches "
                f"{', '.join(self.modules)}: most modules have no extrapolation"
            )

    @classmethod
    def of_source(cls, source: Mapping[str, Any]) -> "Order | None":
        """Return the order of the source that a store has recorded; None if it is another kind."""
        if source.get("kind") != "generated" or "task" in source:
            return None
        values = {each.name: source[each.name] for each in fields(cls)}
        return cls(**values | {name: tuple(values[name]) for name in ("modules", "splits")})

    def describe(self) -> dict[str, Any]:
        """Return what determines the texts of the questions, as values for JSON."""
        versions = {name: version(name) for name in ("mathematics_dataset", "numpy", "sympy")}
        versions["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        values: dict[str, Any] = json.loads(json.dumps({**asdict(self), "versions": versions}))
        return values

    def files(self) -> "list[GeneratedFile]":
        """Return the files of the dataset to generate, in the order of the store."""
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
    """A file of the dataset and its number of questions."""

    split: str
    module: str
    count: int

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The place of its rows in a store: split, module and difficulty."""
        split, difficulty = STORE_PLACES[self.split]
        return split, self.module, difficulty


@contextmanager
def unfinished(path: Path, order: Order) -> Iterator[Path]:
    """The folder with the pieces of a store, locked by one process at a time."""
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
    if not any(file.parent.glob("*.arrow")):  # nothing has been generated yet
        write_json(file, wanted)
    begun = json.loads(file.read_text("utf-8"))
    differing = [name for name in wanted if begun.get(name) != wanted[name]]
    if differing:
        raise StoreError(
            f"{file.parent} has an unfinished generation with another {' and '.join(differing)} "
            f"({', '.join(f'{name} {begun.get(name)}' for name in differing)}): finish it, "
            f"or delete the folder"
        )


class Pieces:
    """The questions generated so far, in files of consecutive rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[tuple[str, str], list[tuple[int, Path]]] = {}
        for path in folder.glob("*.arrow"):
            split, module, start, _ = path.name.split(".")
            insort(self._rows.setdefault((split, module), []), (int(start), path))

    def add(
        self, split: str, module: str, start: int, questions: list[str], answers: list[str]
    ) -> None:
        """Save questions of a file, starting at a row."""
        path = self._folder / f"{split}.{module}.{start}.arrow"
        table = pa.table({"question": questions, "answer": answers})
        with whole(path) as made, ipc.new_file(made, table.schema) as writer:
            writer.write_table(table)
        self._rows.setdefault((split, module), []).append((start, path))

    def count(self, file: GeneratedFile) -> int:
        """Return the number of questions of a file so far, without gaps from the first."""
        done = 0
        for start, path in self._rows.get((file.split, file.module), []):
            if start == done:
                done += len(_read_piece(path)[0])
        return done

    def read(self, file: GeneratedFile) -> Iterator[Texts]:
        """Yield the questions and answers of a file, piece by piece."""
        for _, path in self._rows.get((file.split, file.module), []):
            yield _read_piece(path)

    def questions(self, file: GeneratedFile) -> pa.ChunkedArray:
        """Return all questions of a file; 666,666 of them take about 50 MB."""
        return pa.chunked_array([texts[0] for texts in self.read(file)], pa.string())


def _read_piece(path: Path) -> Texts:
    table = ipc.open_file(path.read_bytes()).read_all()
    question, answer = (table[name].combine_chunks() for name in ("question", "answer"))
    return question, answer
