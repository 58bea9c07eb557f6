"""The store: questions and answers in Arrow files, mapped into memory, any row at once.

A folder with `train.arrow`, `interpolate.arrow` and `extrapolate.arrow` (those that exist), which
any reader of Arrow files opens as they are, and `store.json`, which says what is in them. The rows
of a split are sorted by module and difficulty in the order of the table of modules; a segment
is the run of rows that share both. A record batch holds rows of one segment only.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from tp_transformer.data.modules import (
    DIFFICULTIES,
    EXTRAPOLATE,
    EXTRAPOLATED,
    INTERPOLATE,
    MODULE_NAMES,
    match_modules,
)
from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.errors import StoreError

TRAIN = "train"
# The modules of each split, in the order of their rows.
STORE_SPLITS = {
    TRAIN: MODULE_NAMES,
    INTERPOLATE: MODULE_NAMES,
    EXTRAPOLATE: tuple(EXTRAPOLATED),
}
MANIFEST = "store.json"
FORMAT, VERSION = "tp-transformer-store", 1

Rows = npt.ArrayLike


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one module and difficulty, and how long their texts are."""

    module: str
    difficulty: str | None
    start: int
    count: int
    checksum: str  # of the texts; independent of how the files are laid out
    question_lengths: tuple[int, ...]  # how many questions have 0, 1, 2, … characters
    answer_lengths: tuple[int, ...]

    @property
    def rows(self) -> range:
        """The rows' numbers in their split."""
        return range(self.start, self.start + self.count)


@dataclass(frozen=True)
class Example:
    """One row of a store."""

    module: str
    difficulty: str | None
    question: str
    answer: str


def open_store(folder: str | Path) -> "Store":
    """Open a store; quick whatever its size, since nothing but its description is read."""
    return Store(folder)


class NoSplitError(StoreError, KeyError):
    """A split that a store does not have."""

    __str__ = Exception.__str__  # KeyError would put quotes around the message


class Store(Mapping[str, "Split"]):
    """A store on disk: its splits by name, and where they came from."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        manifest = _read_manifest(self.path)
        try:
            self.source: dict[str, Any] = manifest["source"]
            self.skipped: list[dict[str, Any]] = manifest["skipped"]
            self._splits = {
                name: Split(self.path, name, manifest["splits"][name])
                for name in STORE_SPLITS
                if name in manifest["splits"]
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{self.path / MANIFEST} is damaged: {error!r}") from error

    def __getitem__(self, split: str) -> "Split":
        if split not in self._splits:
            raise NoSplitError(
                f"{self.path} has no split {split!r}; it has {', '.join(self) or 'none'}"
            )
        return self._splits[split]

    def __contains__(self, split: object) -> bool:
        return split in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {len(split):,}" for name, split in self.items())
        return f"Store({str(self.path)!r}, {rows})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)


class Split:
    """The rows of one split, by number from 0; a module's rows are one range of numbers."""

    def __init__(self, folder: Path, name: str, described: Mapping[str, Any]) -> None:
        self.name = name
        self.path = folder / f"{name}.arrow"
        self.segments = tuple(_segment(entry) for entry in described["segments"])
        self.digest: str = described["digest"]
        self._described = dict(described)
        self._n_rows: int = described["rows"]
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != described["bytes"]:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise StoreError(
                f"{self.path} {found}, where {MANIFEST} promises {described['bytes']:,}; "
                f"prepare the store again"
            )

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, row: int) -> Example:
        (question,), (answer,) = self.rows([row])
        segment = self.segments[self.segment_of([row])[0]]
        return Example(segment.module, segment.difficulty, question, answer)

    def __iter__(self) -> Iterator[Example]:
        return self.examples()

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {len(self):,} rows of {len(self.modules)} modules)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.path.parent, self.name, self._described)

    @cached_property
    def modules(self) -> dict[str, range]:
        """The modules that have rows here, and the numbers of their rows."""
        found: dict[str, range] = {}
        for segment in self.segments:
            start = found[segment.module].start if segment.module in found else segment.start
            found[segment.module] = range(start, segment.start + segment.count)
        return found

    @cached_property
    def _starts(self) -> Ids:
        return np.array([segment.start for segment in self.segments], dtype=np.int64)

    @property
    def max_lengths(self) -> tuple[int, int]:
        """The characters of the longest question and of the longest answer."""
        return (
            max((len(s.question_lengths) for s in self.segments), default=1) - 1,
            max((len(s.answer_lengths) for s in self.segments), default=1) - 1,
        )

    def select(
        self, modules: str | Iterable[str] = "*", difficulties: Iterable[str | None] | None = None
    ) -> tuple[Segment, ...]:
        """The segments of the modules that match the patterns, of all or some difficulties."""
        of_split = None if self.name == TRAIN else self.name
        names = match_modules(modules, of_split)
        wanted = None if difficulties is None else set(difficulties)
        return tuple(
            segment
            for segment in self.segments
            if segment.module in names and (wanted is None or segment.difficulty in wanted)
        )

    def segment_of(self, rows: Rows) -> Ids:
        """Which of the segments each row is in, by its place in `segments`."""
        return np.searchsorted(self._starts, self._checked(rows), side="right") - 1

    def examples(self, modules: str | Iterable[str] = "*") -> Iterator[Example]:
        """The rows of the modules that match the patterns, one by one."""
        for segment in self.select(modules):
            for batch in self.batches(segment):
                questions, answers = (batch[name].to_pylist() for name in ("question", "answer"))
                for question, answer in zip(questions, answers, strict=True):
                    yield Example(segment.module, segment.difficulty, question, answer)

    def rows(self, rows: Rows) -> tuple[list[str], list[str]]:
        """The questions and the answers of some rows, in the order asked for."""
        batch, row = self._locate(rows)
        return self._texts(0, batch, row), self._texts(1, batch, row)

    def tokens(self, rows: Rows, vocabulary: Vocabulary) -> tuple[Ragged, Ragged]:
        """The questions and the answers of some rows as ids, each `<sos> text <eos>`."""
        batch, row = self._locate(rows)
        data = self._file.data
        return (
            vocabulary.encode_spans(data, *self._file.spans(0, batch, row)),
            vocabulary.encode_spans(data, *self._file.spans(1, batch, row)),
        )

    def lengths(self, rows: Rows) -> tuple[Ids, Ids]:
        """How many characters the questions and the answers of some rows have."""
        batch, row = self._locate(rows)
        return self._file.spans(0, batch, row)[1], self._file.spans(1, batch, row)[1]

    def batches(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The rows of a segment as Arrow record batches.

        They are read, not mapped, so that going through a whole store keeps one batch in memory.
        """
        starts = self._file.starts
        first, end = np.searchsorted(starts, [segment.start, segment.start + segment.count])
        for batch in range(first, end):
            yield self._reader.get_batch(batch)

    @cached_property
    def _reader(self) -> ipc.RecordBatchFileReader:
        return ipc.open_file(pa.OSFile(str(self.path)))

    @cached_property
    def _file(self) -> "_MappedFile":
        mapped = _MappedFile(self.path)
        if mapped.starts[-1] != len(self):
            raise StoreError(
                f"{self.path} has {mapped.starts[-1]:,} rows, where {MANIFEST} promises "
                f"{len(self):,}; prepare the store again"
            )
        return mapped

    def _checked(self, rows: Rows) -> Ids:
        numbers = np.asarray(rows)
        if numbers.size == 0:
            return np.zeros(0, dtype=np.int64)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise TypeError(f"rows must be a list of whole numbers, not {numbers.dtype}")
        if numbers.min() < 0 or numbers.max() >= len(self):
            raise IndexError(f"{self.name} has rows 0 to {len(self) - 1:,}")
        return numbers.astype(np.int64, copy=False)

    def _locate(self, rows: Rows) -> tuple[Ids, Ids]:
        """The record batch of each row, and its number there."""
        numbers = self._checked(rows)
        batch = np.searchsorted(self._file.starts, numbers, side="right") - 1
        return batch, numbers - self._file.starts[batch]

    def _texts(self, column: int, batch: Ids, row: Ids) -> list[str]:
        starts, lengths = self._file.spans(column, batch, row)
        ends = np.cumsum(lengths)
        places = np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())
        text = self._file.data[places].tobytes().decode("ascii")
        bounds = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [text[start:end] for start, end in bounds]


class _MappedFile:
    """An Arrow file as plain bytes, and where in them each batch's questions and answers lie.

    Arrow keeps a column of texts as one run of bytes and one run of 32-bit offsets into it. With
    the positions of both in the file, the bytes of any rows are found by arithmetic on arrays: no
    object per row or batch is made, and only the pages that hold those rows are read.
    """

    def __init__(self, path: Path) -> None:
        try:
            buffer = pa.memory_map(str(path)).read_buffer()
            reader = ipc.open_file(pa.BufferReader(buffer))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            columns = [[batch.column(name) for batch in batches] for name in ("question", "answer")]
        except (OSError, pa.ArrowException, KeyError) as error:
            raise StoreError(f"{path} is damaged or not an Arrow file: {error}") from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        # The format aligns every buffer to 8 bytes.
        self._words = np.frombuffer(buffer, dtype="<i4", count=buffer.size // 4)
        self.starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._tables = [_positions(column, buffer.address) for column in columns]

    def spans(self, column: int, batch: Ids, row: Ids) -> tuple[Ids, Ids]:
        """Where in the file each row's text starts, and how long it is."""
        offsets_at, data_at = self._tables[column]
        place = offsets_at[batch] + row
        start = self._words[place].astype(np.int64)
        return data_at[batch] + start, self._words[place + 1] - start


def _positions(arrays: Sequence[pa.Array], base: int) -> tuple[Ids, Ids]:
    """Of each array, the place of its offsets in the file's words and of its data in the bytes."""
    buffers = [array.buffers() for array in arrays]
    offsets = [(offsets.address - base) // 4 for _, offsets, _ in buffers]
    data = [data.address - base for _, _, data in buffers]
    return np.array(offsets, dtype=np.int64), np.array(data, dtype=np.int64)


def is_store(folder: str | Path) -> bool:
    """Whether a folder is a store, of whatever version and however damaged."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def rank(split: str, module: str, difficulty: str | None) -> tuple[int, int]:
    """Where a module and difficulty stand in the order of a split's rows."""
    hardness = DIFFICULTIES.index(difficulty) if difficulty else len(DIFFICULTIES)
    return STORE_SPLITS[split].index(module), hardness


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    if not folder.is_dir():
        raise StoreError(f"there is no store {folder}; `tpt data prepare` or `generate` makes one")
    if not file.is_file():
        raise StoreError(f"{folder} is not a store: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file} is damaged or not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a store: {MANIFEST} does not describe one")
    if manifest.get("version") != VERSION:
        raise StoreError(
            f"{folder} is a store of version {manifest.get('version')}, and this is for version "
            f"{VERSION}; prepare it again"
        )
    return manifest


def _segment(entry: Mapping[str, Any]) -> Segment:
    return Segment(
        **{
            **entry,
            "question_lengths": tuple(entry["question_lengths"]),
            "answer_lengths": tuple(entry["answer_lengths"]),
        }
    )
