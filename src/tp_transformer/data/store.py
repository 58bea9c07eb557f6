"""Stores: questions and answers in memory-mapped Arrow files, with random access to rows.

A store is a folder with a file for each split, such as `train.arrow`, which any reader of Arrow
files can open, and `store.json`, which describes the files and the task. The rows of a split are
numbered by module and difficulty, in the order of the task; consecutive rows with the same module
and difficulty are a segment. Each record batch has rows of only one segment. Record batches are in
the file in the order in which they were written; `store.json` has the order of the rows.

`store.json` is compared with its hash when a store is opened, and positions in the other files are
checked before they are used. `verify` compares these files with their hashes.
"""

import hashlib
import json
import mmap
import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, SupportsIndex, TypedDict, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from tp_transformer.data.task import TRAIN as TRAIN
from tp_transformer.data.task import Task
from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.errors import SettingsError, StoreError, UserError
from tp_transformer.runtime.progress import Counted, Update
from tp_transformer.table import notebook_table

if TYPE_CHECKING:
    import datasets
    from torch.utils.data import Dataset

MANIFEST = "store.json"
_HEADER = {"format": "tp-transformer-store", "version": 2}
_SHOWN_ROWS = 5  # rows of a split shown in a notebook
_READ_BYTES = 2**22
_TEXT_COLUMNS = ("question", "answer")

Rows = npt.ArrayLike
RowCount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Plain = str | int | float | bool | None


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one module and difficulty, with the lengths of their texts."""

    module: str
    difficulty: str | None
    start: RowCount
    count: RowCount
    checksum: str  # of the texts; independent of the layout of the file
    question_lengths: tuple[RowCount, ...]  # number of questions with 0, 1, 2, … tokens
    answer_lengths: tuple[RowCount, ...]

    @property
    def rows(self) -> range:
        """The numbers of the rows in the split."""
        return range(self.start, self.start + self.count)


@dataclass(frozen=True)
class SplitEntry:
    """The description of one split."""

    rows: RowCount
    bytes: RowCount
    digest: str  # of the content; see `content_digest`
    segments: tuple[Segment, ...]
    sha256: str  # of the file
    # The record batches of the file in the order of the rows; None if that is their order.
    order: tuple[RowCount, ...] | None


class SkippedRows(TypedDict):
    """Rows of a file of the source that were skipped."""

    file: str
    reason: str
    rows: RowCount
    first_line: RowCount | None


@dataclass(frozen=True)
class Manifest:
    """`store.json`: the contents and the source of a store."""

    task: Task
    made_by: str
    source: dict[str, _Plain | list[_Plain] | dict[str, _Plain]]
    skipped: list[SkippedRows]
    splits: dict[str, SplitEntry]

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read `store.json`.

        Raises:
            StoreError: if it is missing, damaged, or of another version
        """
        file = folder / MANIFEST
        if not folder.is_dir():
            raise StoreError(
                f"there is no store {folder}; "
                "create one with `tpt data prepare` or `tpt data generate`"
            )
        if not file.is_file():
            raise StoreError(f"{folder} is not a store: it has no {MANIFEST}")
        try:
            values = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{file} is damaged or not JSON: {error}") from error
        if not isinstance(values, dict) or values.get("format") != _HEADER["format"]:
            raise StoreError(f"{folder} is not a store: {MANIFEST} does not describe one")
        if values.get("version") != _HEADER["version"]:
            version = reprlib.repr(values.get("version"))
            raise StoreError(
                f"{folder} is a store of version {version}, which this release does not read; "
                "prepare it again"
            )
        try:
            if values.pop("sha256", None) != _hash_of(values):
                raise ValueError("it was changed after it was written")
            values["task"] = Task.from_json(values.get("task"))
            manifest = msgspec.convert(values, cls)
            for name, entry in manifest.splits.items():
                _check_split(entry, name, manifest.task)
        except ValueError as error:
            raise StoreError(f"{file} is damaged: {error}") from error
        return manifest

    def write(self, folder: Path) -> None:
        """Write `store.json`, including a hash of its values."""
        values = {
            **_HEADER,
            "task": self.task.to_json(),
            "made_by": self.made_by,
            "source": self.source,
            "skipped": self.skipped,
            "splits": {name: asdict(entry) for name, entry in self.splits.items()},
        }
        msgspec.convert({**values, "task": self.task}, Manifest)  # raises if it is unreadable
        text = json.dumps({**values, "sha256": _hash_of(values)})
        (folder / MANIFEST).write_text(text + "\n", "utf-8")


def _hash_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def content_digest(segments: Sequence[Segment]) -> str:
    """Return a hash of the rows of a split, independent of the layout of the file."""
    return _hash_of([[s.module, s.difficulty, s.count, s.checksum] for s in segments])


def _check_split(entry: SplitEntry, split: str, task: Task) -> None:
    start = 0
    for segment in entry.segments:
        lengths = segment.question_lengths, segment.answer_lengths
        levels = (*task.difficulties, None)
        if not task.has(split, segment.module) or segment.difficulty not in levels:
            raise ValueError(f"{split} has no rows of {segment.module!r} {segment.difficulty!r}")
        if segment.start != start or any(sum(counts) != segment.count for counts in lengths):
            raise ValueError(f"the segments of {split} do not have the rows that they describe")
        start += segment.count
    if entry.rows != start:
        raise ValueError(f"{split} has {entry.rows:,} rows, and its segments have {start:,}")


def is_store(folder: str | Path) -> bool:
    """Whether a folder is a store, of any version and even if damaged."""
    try:
        values = json.loads((Path(folder) / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("format") == _HEADER["format"]


def schema(task: Task) -> pa.Schema:
    """Return the schema of the files of a task."""
    # Dictionary-encoded names: as texts they would enlarge the file by a third.
    n_names = max(len(task.difficulties), *map(len, task.splits.values()))
    name = pa.dictionary(pa.int8() if n_names < 128 else pa.int32(), pa.string())
    columns = {"module": name, "difficulty": name, "question": pa.string(), "answer": pa.string()}
    return pa.schema(columns)


@dataclass(frozen=True)
class Example:
    """One row of a store."""

    module: str
    difficulty: str | None
    question: str
    answer: str


if TYPE_CHECKING:

    class _Examples(Sequence[Example], Dataset[Example]):
        """The type that torch's loader declares; at run time, any sequence is accepted."""
else:
    _Examples = Sequence


def open_store(folder: str | Path) -> "Store":
    """Open a store; fast for any size, because only `store.json` is read."""
    return Store(folder)


class NoSplitError(StoreError, KeyError):
    """Raised for a split that a store does not have."""

    __str__ = Exception.__str__  # KeyError would quote the message


class Store(Mapping[str, "Split"]):
    """A store on disk: its splits by name, its task and its source."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        manifest = Manifest.read(self.path)
        self.task, self.source, self.skipped = manifest.task, manifest.source, manifest.skipped
        self._splits = {
            name: Split(self.path, name, entry, self.task)
            for name, entry in manifest.splits.items()
        }

    def __getitem__(self, split: str) -> "Split":
        if split not in self._splits:
            raise NoSplitError(
                f"{self.path} has no split {split!r}; it has {', '.join(self) or 'none'}"
            )
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {len(split):,}" for name, split in self.items())
        return f"Store({str(self.path)!r}, {rows})"

    def _repr_html_(self) -> str:
        rows = (
            (name, f"{len(split):,}", len(split.modules), *split.max_lengths)
            for name, split in self.items()
        )
        tokens = self.task.vocabulary.tokenisation
        heads = ("split", "rows", "modules", f"question, {tokens}", f"answer, {tokens}")
        return notebook_table(f"Store {self.path}: {self.task.name}", heads, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)


class Split(_Examples):
    """The rows of one split, numbered from 0; the rows of a module are contiguous.

    A split is also a map-style dataset for a DataLoader of torch, whose `collate_fn` is that of a
    model:

    Examples:
        >>> DataLoader(split, batch_size=64, shuffle=True, collate_fn=model.collate)
    """

    def __init__(self, folder: Path, name: str, entry: SplitEntry, task: Task) -> None:
        self.name, self.task, self.path = name, task, folder / f"{name}.arrow"
        self.segments, self.digest = entry.segments, entry.digest
        self.sha256, self.n_bytes = entry.sha256, entry.bytes
        self._entry = entry
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != entry.bytes:
            state = "is missing" if size is None else f"has {size:,} bytes"
            raise StoreError(
                f"{self.path} {state}, but {MANIFEST} records {entry.bytes:,}; "
                f"prepare the store again"
            )

    def __len__(self) -> int:
        return self._entry.rows

    @overload
    def __getitem__(self, row: SupportsIndex) -> Example: ...

    @overload
    def __getitem__(self, row: slice) -> list[Example]: ...

    def __getitem__(self, row: SupportsIndex | slice) -> Example | list[Example]:
        if isinstance(row, slice):
            return self.__getitems__(range(len(self))[row])
        number = operator.index(row)
        return self.__getitems__([number + len(self) if number < 0 else number])[0]

    def __getitems__(self, rows: Rows) -> list[Example]:
        """Return the examples of some rows, in the given order; torch's DataLoader calls this."""
        segments = (self.segments[index] for index in self.segment_of(rows))
        return [
            Example(segment.module, segment.difficulty, question, answer)
            for segment, question, answer in zip(segments, *self.rows(rows), strict=True)
        ]

    def __iter__(self) -> Iterator[Example]:
        return self.examples()

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {len(self):,} rows of {len(self.modules)} modules)"

    def _repr_html_(self) -> str:
        title = f"Split {self.name}: {len(self):,} rows of {len(self.modules)} modules, the first"
        heads = ("module", "difficulty", "question", "answer")
        return notebook_table(title, heads, map(astuple, self[:_SHOWN_ROWS]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.path.parent, self.name, self._entry, self.task)

    @cached_property
    def modules(self) -> dict[str, range]:
        """The modules that have rows in this split, with the numbers of their rows."""
        rows: dict[str, range] = {}
        for segment in self.segments:
            first = rows.get(segment.module, segment.rows)
            rows[segment.module] = range(first.start, segment.rows.stop)
        return rows

    @cached_property
    def _starts(self) -> Ids:
        return np.array([segment.start for segment in self.segments], dtype=np.int64)

    @property
    def max_lengths(self) -> tuple[int, int]:
        """The number of tokens of the longest question, and of the longest answer."""
        counts = [(len(s.question_lengths), len(s.answer_lengths)) for s in self.segments]
        question, answer = np.max(counts or [(1, 1)], axis=0).tolist()
        return question - 1, answer - 1

    def select(self, modules: str | Iterable[str] = "*") -> tuple[Segment, ...]:
        """Return the segments of matching modules."""
        names = set(self.task.match(modules, self.name))
        return tuple(segment for segment in self.segments if segment.module in names)

    def segment_of(self, rows: Rows) -> Ids:
        """Return the index in `segments` of the segment of each row."""
        return np.searchsorted(self._starts, self._checked(rows), side="right") - 1

    def examples(self, modules: str | Iterable[str] = "*") -> Iterator[Example]:
        """Yield the rows of the modules that match the patterns."""
        for segment in self.select(modules):
            for batch in self.batches(segment):
                try:
                    questions, answers = (batch[name].to_pylist() for name in _TEXT_COLUMNS)
                except UnicodeDecodeError as error:
                    raise self._damaged(error) from error
                for question, answer in zip(questions, answers, strict=True):
                    yield Example(segment.module, segment.difficulty, question, answer)

    def rows(self, rows: Rows) -> tuple[list[str], list[str]]:
        """Return the questions and the answers of some rows, in the given order."""
        questions, answers = (self._texts(*spans) for spans in self._spans(rows))
        return questions, answers

    def tokens(self, rows: Rows, vocabulary: Vocabulary) -> tuple[Ragged, Ragged]:
        """Return the questions and the answers of some rows as ids, each `<sos> text <eos>`."""
        if vocabulary.is_words != self.task.vocabulary.is_words:
            raise SettingsError(
                f"the tokens of {self.path.parent} are {self.task.vocabulary.tokenisation}, those "
                f"of the model {vocabulary.tokenisation}"
            )
        data = self._file.data
        source, target = (vocabulary.encode_spans(data, *spans) for spans in self._spans(rows))
        return source, target

    def to_hf(self) -> "datasets.Dataset":
        """Return the rows as a Hugging Face dataset, whose texts are memory-mapped."""
        try:
            from datasets import Dataset
            from datasets.table import InMemoryTable
        except ImportError as error:
            message = "this needs Hugging Face datasets: pip install 'tp-transformer[hf]'"
            raise UserError(message) from error
        return Dataset(InMemoryTable(pa.Table.from_batches(self._file.batches, schema(self.task))))

    def lengths(self, rows: Rows) -> tuple[Ids, Ids]:
        """Return the numbers of tokens of the questions and of the answers of some rows."""
        count, data = self.task.vocabulary.count, self._file.data
        questions, answers = (count(data, *spans) for spans in self._spans(rows))
        return questions, answers

    def batches(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment as Arrow record batches.

        They are read, not memory-mapped, so that only one batch is in memory when a whole store is
        read. The offsets of a batch are checked before it is yielded; `verify` compares the texts
        with their hash.
        """
        first, end = np.searchsorted(self._file.starts, [segment.start, segment.rows.stop])
        with self.path.open("rb") as file:  # by Python: Arrow opens only paths that are UTF-8
            reader = ipc.open_file(file)
            for number in self._file.order[first:end]:
                try:
                    batch = reader.get_batch(number)
                    _check_batch(batch)
                except (OSError, ValueError, pa.ArrowException) as error:
                    raise self._damaged(error) from error
                yield batch

    def _damaged(self, error: Exception) -> StoreError:
        return StoreError(f"{self.path} is damaged: {' '.join(str(error).split())}")

    @cached_property
    def _file(self) -> "_MappedFile":
        mapped = _MappedFile(self.path, self._entry.order, self.task, self.max_lengths)
        if mapped.starts[-1] != len(self) or not np.isin(self._starts, mapped.starts).all():
            raise StoreError(
                f"{self.path} does not have the rows that {MANIFEST} describes; "
                "prepare the store again"
            )
        return mapped

    def _checked(self, rows: Rows) -> Ids:
        numbers = np.asarray(rows)
        if numbers.size == 0:
            return np.zeros(0, np.int64)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise TypeError(f"rows must be a list of whole numbers, not {numbers.dtype}")
        if numbers.min() < 0 or numbers.max() >= len(self):
            raise IndexError(f"{self.name} has rows 0 to {len(self) - 1:,}")
        return numbers.astype(np.int64, copy=False)

    def _spans(self, rows: Rows) -> list[tuple[Ids, Ids]]:
        """Return the positions and the lengths of the questions, and those of the answers."""
        numbers = self._checked(rows)
        batch = np.searchsorted(self._file.starts, numbers, side="right") - 1
        row = numbers - self._file.starts[batch]
        return [self._file.spans(column, batch, row) for column in (0, 1)]

    def _texts(self, starts: Ids, lengths: Ids) -> list[str]:
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        data = self._file.data.data
        try:
            return [str(data[i:j], "utf-8") for i, j in spans]
        except UnicodeDecodeError as error:
            raise self._damaged(error) from error


class _MappedFile:
    """An Arrow file as bytes, with the positions of the questions and answers of each record batch.

    Arrow stores a column of texts as contiguous bytes and as 32-bit offsets into them. With the
    positions of both in the file, the bytes of any rows can be computed with array operations,
    without an object for each row or batch, and only the pages that contain these rows are read.

    Damage that would lead out of bounds is detected: the layout of the batches is checked when the
    file is opened, the offsets of a row whenever it is read.
    """

    def __init__(
        self, path: Path, order: Sequence[int] | None, task: Task, longest: tuple[int, int]
    ) -> None:
        self.path = path
        self._longest = [n_tokens * task.vocabulary.bytes_per_token for n_tokens in longest]
        try:
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            buffer = pa.py_buffer(content)
            reader = ipc.open_file(pa.BufferReader(buffer))
            if not reader.schema.equals(schema(task)):
                raise ValueError("its columns are not those of a store")
            self.order = range(reader.num_record_batches) if order is None else order
            if sorted(self.order) != list(range(reader.num_record_batches)):
                raise ValueError(f"it has {reader.num_record_batches} record batches")
            self.batches = [reader.get_batch(number) for number in self.order]
            self._tables = [
                _positions([batch.column(name) for batch in self.batches], buffer)
                for name in _TEXT_COLUMNS
            ]
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"{path} is damaged or not an Arrow file: {reason}") from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        # The Arrow format aligns each buffer to 8 bytes.
        self._words = np.frombuffer(buffer, dtype="<i4", count=buffer.size // 4)
        self.starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])

    def spans(self, column: int, batch: Ids, row: Ids) -> tuple[Ids, Ids]:
        """Return the position of the text of each row in the file, and its number of bytes."""
        offsets_at, data_at, sizes = self._tables[column]
        at = offsets_at[batch] + row
        start = self._words[at].astype(np.int64)
        lengths = self._words[at + 1] - start
        fits = (start >= 0) & (lengths > 0) & (start + lengths <= sizes[batch])
        fits &= lengths <= self._longest[column]
        if not fits.all():
            wrong = int(np.argmin(fits))
            number = self.starts[batch[wrong]] + row[wrong]
            raise StoreError(f"{self.path} is damaged: the offsets of row {number:,} are wrong")
        return data_at[batch] + start, lengths


def _positions(arrays: Sequence[pa.Array], file: pa.Buffer) -> tuple[Ids, Ids, Ids]:
    """Return, for each array, the positions of its offsets (in words) and of its data (in bytes).

    The third value is the number of bytes of the data. Buffers that are outside of the file or
    overlap its ends raise a ValueError.
    """
    table = np.empty((len(arrays), 3), dtype=np.int64)
    for number, array in enumerate(arrays):
        validity, offsets, data = array.buffers()
        if validity is not None or offsets is None or data is None or not len(array):
            raise ValueError(f"record batch {number} lacks texts")
        at, data_at = (part.address - file.address for part in (offsets, data))
        # Encoding also reads the byte before and the byte after a text.
        is_inside = at >= 0 and data_at > 0 and data_at + data.size < file.size
        if at % 4 or not is_inside or at + 4 * (len(array) + 1) > min(at + offsets.size, file.size):
            raise ValueError(f"the buffers of record batch {number} are out of bounds")
        table[number] = at // 4, data_at, data.size
    return table[:, 0], table[:, 1], table[:, 2]


def _check_batch(batch: pa.RecordBatch) -> None:
    """Raise if offsets of texts or numbers of names in a batch are out of bounds.

    The full validation of texts also decodes them, which takes several times as long.
    """
    batch.validate()  # checks the sizes of the buffers, the first offset and the last one
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)
        else:
            offsets = np.frombuffer(column.buffers()[1], np.int32)[: batch.num_rows + 1]
            if not (offsets[1:] > offsets[:-1]).all():
                raise ValueError("the offsets of its texts are wrong")


def texts_as_bytes(texts: pa.StringArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return the offsets of the texts of an array, from 0, and their bytes; nothing is copied."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = memoryview(data if data is not None else b"")[offsets[0] : offsets[-1]]
    return offsets - offsets[0], text


def verify(folder: str | Path, progress: Update | None = None) -> list[str]:
    """Compare all bytes of a store with the recorded hashes; return a line for each file.

    All damaged files are named in one StoreError.
    """
    store = open_store(folder)  # compares `store.json` with its hash
    damaged = []
    counted = Counted(sum(split.n_bytes for split in store.values()), progress)
    for split in store.values():
        digest = hashlib.sha256()
        with split.path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                counted.add(len(data))
        if digest.hexdigest() != split.sha256:
            damaged.append(split.path.name)
    if damaged:
        verb = "does not match its hash" if len(damaged) == 1 else "do not match their hashes"
        raise StoreError(f"{store.path} is damaged: {', '.join(damaged)} {verb}")
    return [
        f"{MANIFEST}: matches its hash",
        *(f"{split.path.name}: {len(split):,} rows, matches its hash" for split in store.values()),
    ]
