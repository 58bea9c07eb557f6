"""The store: questions and answers in Arrow files, mapped into memory, any row at once.

A folder with a file for each split, such as `train.arrow`, which any reader of Arrow files opens as
it is, and `store.json`, which says what is in them and of which task. The rows of a split are
numbered by module and difficulty in the order of the task; a segment is the run of rows that share
both. A record batch holds rows of one segment only. The batches may lie in the file in another
order, as they came; `store.json` has the order of the rows.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from tp_transformer.data.manifest import MANIFEST as MANIFEST
from tp_transformer.data.manifest import Segment as Segment
from tp_transformer.data.manifest import SplitEntry, read_manifest
from tp_transformer.data.summary import Summary
from tp_transformer.data.task import TRAIN as TRAIN
from tp_transformer.data.task import Task
from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.foundation import html
from tp_transformer.foundation.errors import SettingsError, StoreError, UserError

if TYPE_CHECKING:
    import datasets
    from torch.utils.data import Dataset

    from tp_transformer.data.batch import Batch

_SHOWN_ROWS = 5  # of a split, in a notebook
_TEXT_COLUMNS = ("question", "answer")

Rows = npt.ArrayLike


def schema(task: Task) -> pa.Schema:
    """The columns of a task's files."""
    # Names as numbers: as texts they would add a third to the size of the file.
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
        """What torch's loader asks of type checkers; when it runs, a sequence will do."""
else:
    _Examples = Sequence


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
        manifest = read_manifest(self.path)
        self.task = manifest.task
        self.source = manifest.source
        self.skipped = manifest.skipped
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

    def __contains__(self, split: object) -> bool:
        return split in self._splits

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
        return html.table(f"Store {self.path}: {self.task.name}", heads, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path,)


class Split(_Examples):
    """The rows of one split, by number from 0; a module's rows are one range of numbers.

    A split is also a map-style dataset for torch's loader, which makes batches with `collate`:

    >>> DataLoader(split, batch_size=64, shuffle=True, num_workers=2, collate_fn=split.collate)
    """

    def __init__(self, folder: Path, name: str, entry: SplitEntry, task: Task) -> None:
        self.name = name
        self.task = task
        self.path = folder / f"{name}.arrow"
        self.segments = entry.segments
        self.digest = entry.digest
        self.sha256 = entry.sha256
        self.n_bytes = entry.bytes
        self._entry = entry
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != entry.bytes:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise StoreError(
                f"{self.path} {found}, but {MANIFEST} records {entry.bytes:,}; "
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
        """The examples of some rows, in the order asked for; torch's loader reads batches by it."""
        segments = (self.segments[place] for place in self.segment_of(rows))
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
        return html.table(title, heads, map(astuple, self[:_SHOWN_ROWS]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.path.parent, self.name, self._entry, self.task)

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
        """The tokens of the longest question and of the longest answer."""
        return (
            max((len(s.question_lengths) for s in self.segments), default=1) - 1,
            max((len(s.answer_lengths) for s in self.segments), default=1) - 1,
        )

    def select(
        self, modules: str | Iterable[str] = "*", difficulties: Iterable[str | None] | None = None
    ) -> tuple[Segment, ...]:
        """The segments of the modules that match the patterns, of all or some difficulties."""
        names = set(self.task.match(modules, self.name))
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
                try:
                    questions, answers = (batch[name].to_pylist() for name in _TEXT_COLUMNS)
                except UnicodeDecodeError as error:
                    raise self._damaged(segment, str(error)) from error
                for question, answer in zip(questions, answers, strict=True):
                    yield Example(segment.module, segment.difficulty, question, answer)

    def rows(self, rows: Rows) -> tuple[list[str], list[str]]:
        """The questions and the answers of some rows, in the order asked for."""
        batch, row = self._locate(rows)
        return self._texts(0, batch, row), self._texts(1, batch, row)

    def tokens(self, rows: Rows, vocabulary: Vocabulary) -> tuple[Ragged, Ragged]:
        """The questions and the answers of some rows as ids, each `<sos> text <eos>`."""
        if vocabulary.is_words != self.task.vocabulary.is_words:
            raise SettingsError(
                f"the tokens of {self.path.parent} are {self.task.vocabulary.tokenisation}, those "
                f"of the model {vocabulary.tokenisation}"
            )
        batch, row = self._locate(rows)
        data = self._file.data
        return (
            vocabulary.encode_spans(data, *self._file.spans(0, batch, row)),
            vocabulary.encode_spans(data, *self._file.spans(1, batch, row)),
        )

    def collate(self, examples: Sequence[Example], vocabulary: Vocabulary | None = None) -> "Batch":
        """Examples as a padded batch, in the ids of the task or of another vocabulary."""
        from tp_transformer.data.batch import Batch

        questions = [example.question for example in examples]
        answers = [example.answer for example in examples]
        return Batch.from_text(questions, answers, vocabulary or self.task.vocabulary)

    def to_hf(self) -> "datasets.Dataset":
        """The same rows as a dataset of Hugging Face, whose texts are mapped from the file."""
        try:
            from datasets import Dataset
            from datasets.table import InMemoryTable
        except ImportError as error:
            message = "this needs Hugging Face datasets: pip install 'tp-transformer[hf]'"
            raise UserError(message) from error
        reader = ipc.open_file(pa.memory_map(str(self.path)))
        batches = [reader.get_batch(number) for number in self._file.order]
        return Dataset(InMemoryTable(pa.Table.from_batches(batches, reader.schema)))

    def lengths(self, rows: Rows) -> tuple[Ids, Ids]:
        """How many tokens the questions and the answers of some rows have."""
        batch, row = self._locate(rows)
        count, data = self.task.vocabulary.count, self._file.data
        return (
            count(data, *self._file.spans(0, batch, row)),
            count(data, *self._file.spans(1, batch, row)),
        )

    def batches(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The rows of a segment as Arrow record batches.

        They are read, not mapped, so that going through a whole store keeps one batch in memory.
        A batch is given when its offsets are known to be in bounds. That the texts are those that
        were written is known when the segment has been gone through.
        """
        starts, order = self._file.starts, self._file.order
        first, end = np.searchsorted(starts, [segment.start, segment.start + segment.count])
        summary = Summary(self.task)
        for number in order[first:end]:
            try:
                batch = self._reader.get_batch(number)
                _check_batch(batch, segment)
                summary.add(batch.column("question"), batch.column("answer"))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise self._damaged(segment, str(error)) from error
            yield batch
        if summary.segment(segment.module, segment.difficulty, segment.start) != segment:
            raise self._damaged(segment, f"its texts are not those that {MANIFEST} describes")

    def _damaged(self, segment: Segment, reason: str) -> StoreError:
        which = " ".join(filter(None, (segment.module, segment.difficulty)))
        return StoreError(f"{self.path} is damaged in {which}: {' '.join(reason.split())}")

    @cached_property
    def _reader(self) -> ipc.RecordBatchFileReader:
        return ipc.open_file(pa.OSFile(str(self.path)))

    @cached_property
    def _file(self) -> "_MappedFile":
        mapped = _MappedFile(self.path, self._entry.order, self.task, self.max_lengths)
        if mapped.starts[-1] != len(self):
            raise StoreError(
                f"{self.path} has {mapped.starts[-1]:,} rows, but {MANIFEST} records "
                f"{len(self):,}; prepare the store again"
            )
        if not np.isin(self._starts, mapped.starts).all():
            raise StoreError(
                f"{self.path} is not divided as {MANIFEST} says; prepare the store again"
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
        data = self._file.data[places].tobytes()
        offsets = np.concatenate([[0], ends])
        try:
            if not self.task.vocabulary.knows(data, offsets):
                raise ValueError("a text has a token that its task does not have")
            bounds = zip(offsets[:-1].tolist(), ends.tolist(), strict=True)
            if self.task.vocabulary.is_ascii:  # decoded at once, since a byte is a character
                text = data.decode("ascii")
                return [text[start:end] for start, end in bounds]
            return [data[start:end].decode("utf-8") for start, end in bounds]
        except ValueError as error:
            raise StoreError(f"{self.path} is damaged: {error}") from error


class _MappedFile:
    """An Arrow file as plain bytes, and where in them each batch's questions and answers lie.

    Arrow keeps a column of texts as one run of bytes and one run of 32-bit offsets into it. With
    the positions of both in the file, the bytes of any rows are found by arithmetic on arrays: no
    object per row or batch is made, and only the pages that hold those rows are read. What a
    damaged file could lead out of bounds is checked here: the layout of the batches at once, the
    offsets of a row whenever it is asked for.
    """

    def __init__(
        self, path: Path, order: Sequence[int] | None, task: Task, longest: tuple[int, int]
    ) -> None:
        self.path = path
        self._longest = [n_tokens * task.vocabulary.bytes_per_token for n_tokens in longest]
        try:
            buffer = pa.memory_map(str(path)).read_buffer()
            reader = ipc.open_file(pa.BufferReader(buffer))
            if not reader.schema.equals(schema(task)):
                raise ValueError("its columns are not those of a store")
            self.order = range(reader.num_record_batches) if order is None else order
            if len(self.order) != reader.num_record_batches:
                raise ValueError(f"it has {reader.num_record_batches} record batches")
            batches = [reader.get_batch(number) for number in self.order]
            columns = [[batch.column(name) for batch in batches] for name in _TEXT_COLUMNS]
            self._tables = [_positions(column, buffer) for column in columns]
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"{path} is damaged or not an Arrow file: {reason}") from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        # The format aligns every buffer to 8 bytes.
        self._words = np.frombuffer(buffer, dtype="<i4", count=buffer.size // 4)
        self.starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def spans(self, column: int, batch: Ids, row: Ids) -> tuple[Ids, Ids]:
        """Where in the file each row's text starts, and how long it is."""
        offsets_at, data_at, sizes = self._tables[column]
        place = offsets_at[batch] + row
        start = self._words[place].astype(np.int64)
        lengths = self._words[place + 1] - start
        fits = (start >= 0) & (lengths > 0) & (start + lengths <= sizes[batch])
        fits &= lengths <= self._longest[column]
        if not fits.all():
            wrong = int(np.argmin(fits))
            number = self.starts[batch[wrong]] + row[wrong]
            raise StoreError(f"{self.path} is damaged: the offsets of row {number:,} are wrong")
        return data_at[batch] + start, lengths


def _positions(arrays: Sequence[pa.Array], file: pa.Buffer) -> tuple[Ids, Ids, Ids]:
    """Of each array, the place of its offsets in the file's words and of its data in the bytes.

    The last is how many bytes the data has. Buffers that are not where an intact file has them,
    within the bytes of the file, raise a ValueError.
    """
    found = np.empty((len(arrays), 3), dtype=np.int64)
    for number, array in enumerate(arrays):
        validity, offsets, data = array.buffers()
        if validity is not None or offsets is None or data is None or not len(array):
            raise ValueError(f"record batch {number} lacks texts")
        at, data_at = (part.address - file.address for part in (offsets, data))
        # A byte before and one behind a text may be read along with it.
        is_inside = at >= 0 and data_at > 0 and data_at + data.size < file.size
        if at % 4 or not is_inside or at + 4 * (len(array) + 1) > min(at + offsets.size, file.size):
            raise ValueError(f"the buffers of record batch {number} are out of bounds")
        found[number] = at // 4, data_at, data.size
    return found[:, 0], found[:, 1], found[:, 2]


def _check_batch(batch: pa.RecordBatch, segment: Segment) -> None:
    """Refuse a batch whose offsets are out of bounds or whose names are not its segment's.

    Arrow's own full validation decodes every text as well, which takes three times as long as
    this and its checksum together.
    """
    batch.validate()  # the sizes of the buffers, and of the offsets the first and the last
    for name in _TEXT_COLUMNS:
        _, offsets_buffer, _ = batch.column(name).buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[: batch.num_rows + 1]
        if not (offsets[1:] > offsets[:-1]).all():
            raise ValueError(f"the offsets of its column {name!r} are wrong")
    for name, expected in (("module", segment.module), ("difficulty", segment.difficulty)):
        column = batch.column(name)
        column.validate(full=True)
        if column.unique().to_pylist() != [expected]:
            raise ValueError(f"its column {name!r} is not {expected!r} throughout")
