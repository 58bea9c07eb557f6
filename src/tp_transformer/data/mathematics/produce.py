"""Generation: questions by address, and whole stores.

A question is a pure function of its module, split, seed and index (and of the attempt, if a test
question is redrawn because it occurs in training). Generation can therefore be interrupted
anywhere, divided among any number of workers, and resumed after it was killed.

    for example in generate("arithmetic__mixed", split="interpolate", count=10, seed=0): ...

For a store, finished questions are written to small files in a hidden folder beside it. When all
questions are generated, test questions that occur in training are redrawn, and everything is
written as one store.
"""

import json
import os
import shutil
import sys
import time
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from tp_transformer.data.mathematics.deepmind import Address, generator
from tp_transformer.data.mathematics.fast import replacements
from tp_transformer.data.mathematics.modules import (
    EXTRAPOLATE,
    SPLITS,
    STORE_KEYS,
    TRAIN_SPLITS,
    modules_of,
)
from tp_transformer.data.mathematics.task import MATHEMATICS, match_modules
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.writer import has_same_store, write_store
from tp_transformer.errors import SettingsError, StoreError
from tp_transformer.ranges import PositiveInt, Seed, check_fields
from tp_transformer.runtime.files import atomic_write, lock, write_json
from tp_transformer.runtime.processes import OpenPool, in_order, workers
from tp_transformer.runtime.progress import Counted, Update
from tp_transformer.settings import nearest

# About an eighth of a second of work on one core (0.6 ms per question on average), so that the
# transfer of results costs little and a lost worker loses little.
CHUNK = 200
PIECE_ROWS = 20_000
PIECE_SECONDS = 20.0  # maximum work that is lost if the process is killed
MAX_ATTEMPTS = 20  # attempts for a test question before it is kept although it occurs in training
DRAWN_HERE = 500  # number of redraws below which starting workers would take longer

Texts = tuple[pa.StringArray, pa.StringArray]  # questions and answers


@dataclass(frozen=True)
class GeneratedExample:
    """A question with its answer, and the file of the dataset that it belongs to."""

    module: str
    split: str
    question: str
    answer: str

    @property
    def difficulty(self) -> str | None:
        """`easy`, `medium` or `hard` in training; None in the test splits."""
        return STORE_KEYS[self.split][1]


@dataclass(frozen=True)
class Chunk:
    """Consecutive questions of one file of the dataset."""

    module: str
    split: str
    seed: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The split, the module and the difficulty of the questions in a store."""
        split, difficulty = STORE_KEYS[self.split]
        return split, self.module, difficulty

    def cut(self, size: int) -> "Iterator[Chunk]":
        """Yield the same questions in chunks of a size."""
        for start in range(self.start, self.stop, size):
            yield replace(self, start=start, stop=min(start + size, self.stop))


def question_at(
    module: str, split: str, *, seed: int = 0, index: int = 0, attempt: int = 0, fast: bool = True
) -> GeneratedExample:
    """Return the question at an address; `attempt` gives further questions for the same place.

    Without `fast`, only DeepMind's code is used: the same text in about seven times the time.
    """
    if module not in (names := modules_of(split)):
        raise SettingsError(f"split {split} has no module {module!r}{nearest(module, names)}")
    address = Address(module=module, split=split, seed=seed, index=index, attempt=attempt)
    (example,) = draw([address], fast)
    return example


def generate(
    modules: str | Iterable[str],
    *,
    split: str,
    count: int,
    seed: int = 0,
    start: int = 0,
    n_workers: int | str | None = 0,
) -> Iterator[GeneratedExample]:
    """Yield `count` examples of each of the modules that match the patterns, module by module.

    They are generated on demand in this process or, with `n_workers` other than 0, slightly ahead
    in other processes. `start` is the first index of each module.
    """
    if count < 0 or start < 0:
        raise SettingsError("count and start must not be negative")
    chunks = (
        chunk
        for _, module in match_files(modules, [split])
        for chunk in Chunk(module, split, seed, start, start + count).cut(CHUNK if n_workers else 1)
    )
    if n_workers == 0:
        return chain.from_iterable(map(generate_chunk, chunks))
    return chain.from_iterable(generate_chunks(chunks, workers(n_workers)))


def match_files(modules: str | Iterable[str], splits: Iterable[str]) -> list[tuple[str, str]]:
    """Return the files of the dataset, as split and module, whose module matches a pattern."""
    chosen = list(splits)
    files = [(split, module) for split in chosen for module in match_modules(modules, split)]
    if not files:
        raise SettingsError(
            f"no module of {', '.join(chosen) or 'no split'} matches {modules!r}: "
            f"only {len(modules_of(EXTRAPOLATE))} modules are extrapolated; the splits are "
            f"{', '.join(SPLITS)}"
        )
    return files


def generate_chunk(chunk: Chunk) -> list[GeneratedExample]:
    """Return the questions of a chunk; this runs in a worker."""
    first = Address(module=chunk.module, split=chunk.split, seed=chunk.seed)
    return draw(replace(first, index=index) for index in range(chunk.start, chunk.stop))


def generate_chunks(
    chunks: Iterable[Chunk], open_pool: OpenPool
) -> Iterator[list[GeneratedExample]]:
    """Yield the questions of each chunk, in the order of the chunks, generated by workers."""
    return in_order(generate_chunk, chunks, open_pool)


def draw(addresses: Iterable[Address], fast: bool = True) -> list[GeneratedExample]:
    """Return the questions at some addresses."""
    with generator().session():
        replacements().use(fast)
        return [GeneratedExample(a.module, a.split, *generator().question(a)) for a in addresses]


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
        self.files()  # raises if there are none

    @classmethod
    def of_source(cls, source: Mapping[str, Any]) -> "Order | None":
        """Return the order of the source that a store has recorded; None if it is another kind."""
        if source.get("kind") != "generated" or "task" in source:
            return None
        values = {field.name: source[field.name] for field in fields(cls)}
        return cls(**values | {name: tuple(values[name]) for name in ("modules", "splits")})

    def describe(self) -> dict[str, Any]:
        """Return what determines the texts of the questions, as values for JSON."""
        versions = {name: version(name) for name in ("mathematics_dataset", "numpy", "sympy")}
        versions["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        values: dict[str, Any] = json.loads(json.dumps({**asdict(self), "versions": versions}))
        return values

    def files(self) -> list[Chunk]:
        """Return the files of the dataset to generate, in the order of the store."""
        test_count = self.count if self.test_count is None else self.test_count
        files = [
            Chunk(module, split, self.seed, 0, self.count if split in TRAIN_SPLITS else test_count)
            for split, module in match_files(self.modules, self.splits)
        ]
        splits = list(MATHEMATICS.splits)

        def rank(file: Chunk) -> tuple[int, tuple[int, int]]:
            return splits.index(file.key[0]), MATHEMATICS.rank(*file.key)

        return sorted(files, key=rank)


@contextmanager
def unfinished(path: Path, order: Order) -> Iterator[Path]:
    """The folder with the pieces of a store, locked by one process at a time."""
    folder = path.resolve().parent / f".{path.resolve().name}.generating"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").touch()
    if (descriptor := lock(folder / "lock")) is None:
        raise StoreError(f"another process is generating {path}")
    try:
        _check_same_order(folder / "order.json", order)
        yield folder
    finally:
        os.close(descriptor)


def _check_same_order(file: Path, order: Order) -> None:
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
        self._paths: dict[tuple[str, str], list[tuple[int, Path]]] = {}  # with the first row
        for path in folder.glob("*.arrow"):
            split, module, start, _ = path.name.split(".")
            insort(self._paths.setdefault((split, module), []), (int(start), path))

    def add(
        self, split: str, module: str, start: int, questions: list[str], answers: list[str]
    ) -> None:
        """Save questions of a file, starting at a row."""
        path = self._folder / f"{split}.{module}.{start}.arrow"
        table = pa.table({"question": questions, "answer": answers})
        with (
            atomic_write(path) as unfinished,
            unfinished.open("wb") as file,
            ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
        self._paths.setdefault((split, module), []).append((start, path))

    def count(self, file: Chunk) -> int:
        """Return the number of questions of a file so far."""
        start, path = max(self._paths.get((file.split, file.module), []), default=(0, None))
        return start + len(_read_piece(path)[0]) if path else 0

    def read(self, file: Chunk) -> Iterator[Texts]:
        """Yield the questions and answers of a file, piece by piece."""
        for _, path in self._paths.get((file.split, file.module), []):
            yield _read_piece(path)

    def questions(self, file: Chunk) -> pa.ChunkedArray:
        """Return all questions of a file; 666,666 of them take about 50 MB."""
        return pa.chunked_array([texts[0] for texts in self.read(file)], pa.string())


def _read_piece(path: Path) -> Texts:
    table = ipc.open_file(path.read_bytes()).read_all()
    question, answer = (table[name].combine_chunks() for name in ("question", "answer"))
    return question, answer


class Redraws:
    """Test questions that occur in training, and their replacements."""

    def __init__(
        self, files: Sequence[Chunk], pieces: Pieces, seed: int, open_pool: OpenPool
    ) -> None:
        self._train = [file for file in files if file.split in TRAIN_SPLITS]
        self._pieces, self._seed, self._open_pool = pieces, seed, open_pool
        self.replacements: dict[Address, GeneratedExample] = {}
        tests = [file for file in files if file.split not in TRAIN_SPLITS]
        self._left = [
            Address(module=file.module, split=file.split, seed=seed, index=int(index))
            for file, is_known in zip(tests, self._known(tests) if tests else (), strict=True)
            for index in np.flatnonzero(is_known)
        ]
        for attempt in range(1, MAX_ATTEMPTS):
            if not self._left:
                break
            self._draw(attempt)

    def _known(self, tests: Sequence[Chunk]) -> list[npt.NDArray[np.bool_]]:
        """Return, for each test file, which of its questions occur in training."""
        columns = [self._pieces.questions(file) for file in tests]
        questions = [chunk for column in columns for chunk in column.chunks]
        is_known = self._in_training(pa.chunked_array(questions, pa.string()))
        return np.split(is_known, np.cumsum([len(column) for column in columns])[:-1])

    def _in_training(self, candidates: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        wanted = pc.unique(candidates)
        trained = pa.array([], pa.string())
        for file in self._train:
            column = self._pieces.questions(file)
            hits = column.filter(pc.is_in(column, value_set=wanted))
            trained = pc.unique(pa.chunked_array([trained, *hits.chunks]))
        return np.asarray(pc.is_in(candidates, value_set=trained))

    def _draw(self, attempt: int) -> None:
        tasks = [[replace(address, attempt=attempt)] for address in self._left]
        is_few = len(tasks) <= DRAWN_HERE
        draws = map(draw, tasks) if is_few else in_order(draw, tasks, self._open_pool)
        drawn = [example for (example,) in draws]
        known = self._in_training(pa.chunked_array([[example.question for example in drawn]]))
        left, self._left = self._left, []
        for address, example, occurs in zip(left, drawn, known, strict=True):
            if occurs:
                self._left.append(address)
            else:
                self.replacements[address] = example

    def counts(self) -> dict[str, int]:
        """Return the number of questions of each test file that were replaced."""
        return _by_file(self.replacements)

    def still_in_training(self) -> dict[str, int]:
        """Return the number of questions of each test file that still occur in training."""
        return _by_file(self._left)

    def apply(self, file: Chunk, start: int, texts: Texts) -> tuple[list[str], list[str]]:
        """Return a piece of a test file with the replacements."""
        questions, answers = (column.to_pylist() for column in texts)
        first = Address(module=file.module, split=file.split, seed=self._seed)
        for number in range(len(questions)):
            if example := self.replacements.get(replace(first, index=start + number)):
                questions[number], answers[number] = example.question, example.answer
        return questions, answers


def _by_file(addresses: Iterable[Address]) -> dict[str, int]:
    counts = Counter(f"{address.split}/{address.module}" for address in addresses)
    return dict(sorted(counts.items()))


def count_repeats(files: Sequence[Chunk], pieces: Pieces) -> dict[str, int]:
    """Return the number of training questions of each module that repeat an earlier one."""
    train = [file for file in files if file.split in TRAIN_SPLITS]
    counts = {}
    for module in dict.fromkeys(file.module for file in train):
        columns = [pieces.questions(file) for file in train if file.module == module]
        questions = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
        counts[module] = len(questions) - len(pc.unique(questions))
    return {module: count for module, count in counts.items() if count}


def produce(
    order: Order,
    out: str | Path,
    open_pool: OpenPool,
    *,
    overwrite: bool = False,
    progress: Update | None = None,
) -> Store:
    """Generate the requested questions into the store `out`, or resume this.

    A different store there is an error, unless `overwrite` is true.
    """
    path = Path(out)
    generator()  # raises if the extra is not installed
    files, source = order.files(), {"kind": "generated", **order.describe()}
    if has_same_store(path, source, overwrite=overwrite):
        return open_store(path)
    try:
        with unfinished(path, order) as folder:
            pieces = Pieces(folder)
            _generate_missing(files, pieces, open_pool, progress)
            redraws = Redraws(files, pieces, order.seed, open_pool)
            source |= {
                "redrawn": redraws.counts(),
                "still_in_training": redraws.still_in_training(),
                "training_repeats": count_repeats(files, pieces),
            }
            with write_store(path, MATHEMATICS, source) as writer:
                for file in files:
                    start = 0
                    for texts in pieces.read(file):
                        is_train = file.split in TRAIN_SPLITS
                        writer.append(
                            *file.key, *(texts if is_train else redraws.apply(file, start, texts))
                        )
                        start += len(texts[0])
            shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(f"cannot generate {path}: {error}") from error
    return open_store(path)


def _generate_missing(
    files: Sequence[Chunk],
    pieces: Pieces,
    open_pool: OpenPool,
    progress: Update | None,
) -> None:
    counts = {(file.split, file.module): pieces.count(file) for file in files}
    counted = Counted(sum(len(file) for file in files), progress, done=sum(counts.values()))
    if counted.done == counted.total:
        return
    missing = [replace(file, start=counts[file.split, file.module]) for file in files]
    chunks = (chunk for file in missing for chunk in file.cut(CHUNK))
    unsaved: list[GeneratedExample] = []
    saved_at = time.monotonic()

    def save() -> None:
        nonlocal unsaved, saved_at
        if unsaved:
            key = unsaved[0].split, unsaved[0].module
            questions = [example.question for example in unsaved]
            pieces.add(*key, counts[key], questions, [example.answer for example in unsaved])
            counts[key] += len(unsaved)
        unsaved, saved_at = [], time.monotonic()

    try:
        for examples in generate_chunks(chunks, open_pool):
            key = examples[0].split, examples[0].module
            is_other = unsaved and key != (unsaved[0].split, unsaved[0].module)
            is_late = time.monotonic() - saved_at >= PIECE_SECONDS
            if is_other or is_late or len(unsaved) >= PIECE_ROWS:
                save()
            unsaved += examples
            counted.add(len(examples))
    finally:
        save()
