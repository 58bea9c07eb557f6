"""Writing of stores: atomic, in bounded memory, with segments in any order.

Segments may be appended in any order, such as that of the files in an archive. Each record batch is
written once, at the end of the file, and `store.json` has the order in which batches are read.
Writing all batches a second time in order would double the disk space and the time.
"""

import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from tp_transformer import __version__
from tp_transformer.data.store import (
    Manifest,
    Segment,
    SkippedRows,
    SplitEntry,
    content_digest,
    is_store,
    open_store,
    schema,
    texts_as_bytes,
)
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import StoreError
from tp_transformer.runtime.files import atomic_write

# About 20 MB of questions and answers; the full dataset has about 500 such record batches.
ROWS_PER_BATCH = 2**18

Texts: TypeAlias = pa.StringArray | Sequence[str]
Key: TypeAlias = tuple[str, str | None]  # module, difficulty


@contextmanager
def write_store(
    folder: str | Path, task: Task, source: dict[str, Any], rows_per_batch: int = ROWS_PER_BATCH
) -> Iterator["StoreWriter"]:
    """Yield a writer of a store, which is created when the block ends without an error.

    `source` describes the origin of the rows. An earlier store at the path is replaced only then;
    anything else there is an error.
    """
    path = Path(folder)
    check_replaceable(path)
    try:
        with atomic_write(path) as unfinished, ExitStack() as files:
            unfinished.mkdir()
            writer = StoreWriter(unfinished, task, source, rows_per_batch, files)
            yield writer
            writer.finish()
    except OSError as error:
        raise StoreError(f"cannot write a store to {path}: {error}") from error


def has_same_store(path: Path, source: Mapping[str, Any], *, overwrite: bool) -> bool:
    """Whether a path is a valid store with this source.

    Raises:
        StoreError: if it is another store and not to be overwritten, or anything else
    """
    check_replaceable(path)
    if not is_store(path):
        return False
    try:
        recorded = open_store(path).source
    except StoreError as error:
        if overwrite:
            return False
        raise StoreError(f"{error}; --overwrite replaces it") from error
    differing = [
        f"{name} is {json.dumps(recorded.get(name))}, not {json.dumps(value)}"
        for name, value in json.loads(json.dumps(source)).items()  # JSON has no tuples
        if recorded.get(name) != value
    ]
    if differing and not overwrite:
        raise StoreError(
            f"{path} is another store: {'; '.join(differing)}; --overwrite replaces it"
        )
    return not differing


def check_replaceable(path: Path) -> None:
    """Raise unless a path is a store, an empty folder, or does not exist."""
    if path.is_dir():
        if not is_store(path) and any(path.iterdir()):
            raise StoreError(
                f"{path} already holds something that is not a store; choose a new folder"
            )
    elif path.exists():
        raise StoreError(f"{path} is a file; a store needs a folder of its own")


class StoreWriter:
    """Appends questions and answers to the files of a store."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        source: dict[str, Any],
        rows_per_batch: int,
        files: ExitStack,
    ) -> None:
        self.skipped: list[SkippedRows] = []
        self._folder, self._task, self._source = folder, task, source
        self._rows_per_batch, self._files = rows_per_batch, files
        self._splits: dict[str, _SplitWriter] = {}

    def append(
        self,
        split: str,
        module: str,
        difficulty: str | None,
        questions: Texts,
        answers: Texts,
        *,
        checked: bool = False,
    ) -> None:
        """Append rows to a module of a split and, for training, to a difficulty.

        Append large pieces, module by module: each change of module ends a record batch. With
        `checked`, all tokens are known to be tokens of the task.
        """
        if not self._task.has(split, module):
            raise ValueError(f"{split} has no module {module!r}")
        if difficulty is not None and (split != TRAIN or difficulty not in self._task.difficulties):
            raise ValueError(f"{split} has no difficulty {difficulty!r}")
        if split not in self._splits:
            file = self._folder / f"{split}.arrow"
            self._splits[split] = _SplitWriter(
                file, split, self._task, self._rows_per_batch, self._files
            )
        columns = [
            texts if isinstance(texts, pa.StringArray) else pa.array(texts, pa.string())
            for texts in (questions, answers)
        ]
        if any(column.null_count for column in columns):
            raise ValueError("a question or an answer is missing")
        if len(columns[0]) != len(columns[1]):
            raise ValueError(f"{len(columns[0])} questions but {len(columns[1])} answers")
        vocabulary = self._task.vocabulary
        if not checked and not all(
            vocabulary.knows(data, offsets) for offsets, data in map(texts_as_bytes, columns)
        ):
            kind = vocabulary.tokenisation.removesuffix("s")
            raise ValueError(f"a {kind} is not one that the task {self._task.name} has")
        for name, other in self._splits.items():
            if name != split:
                other.flush()  # so that at most one record batch is in memory
        if len(columns[0]):
            self._splits[split].append((module, difficulty), *columns)

    def finish(self) -> None:
        """Complete the files and write `store.json`."""
        splits = {
            name: self._splits[name].finish() for name in self._task.splits if name in self._splits
        }
        made_by = f"tp-transformer {__version__}"
        Manifest(self._task, made_by, self._source, self.skipped, splits).write(self._folder)


class _SplitWriter:
    def __init__(
        self, file: Path, split: str, task: Task, rows_per_batch: int, files: ExitStack
    ) -> None:
        self._path, self._split, self._task = file, split, task
        self._rows_per_batch = rows_per_batch
        self._sink = files.enter_context(_HashedFile(file))
        self._writer = ipc.new_file(self._sink, schema(task))
        self._summaries: dict[Key, _Summary] = {}
        self._written: list[Key] = []  # segments of the record batches, in the order of the file
        self._key: Key | None = None
        self._pending: list[tuple[pa.StringArray, pa.StringArray]] = []
        self._n_pending = 0

    def append(self, key: Key, questions: pa.StringArray, answers: pa.StringArray) -> None:
        if key != self._key:
            self.flush()
            self._key = key
        self._summaries.setdefault(key, _Summary(self._task)).add(questions, answers)
        while len(questions):
            fits = self._rows_per_batch - self._n_pending
            self._pending.append((questions[:fits], answers[:fits]))
            self._n_pending += len(self._pending[-1][0])
            questions, answers = questions[fits:], answers[fits:]
            if self._n_pending == self._rows_per_batch:
                self.flush()

    def flush(self) -> None:
        """Write the pending rows as a record batch."""
        if self._key is None or not self._n_pending:
            return
        module, difficulty = self._key
        columns = [
            self._name_column(module, self._task.splits[self._split]),
            self._name_column(difficulty, self._task.difficulties),
            *(pa.concat_arrays(chunks) for chunks in zip(*self._pending, strict=True)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema(self._task))
        self._writer.write_batch(batch)
        self._written.append(self._key)
        self._pending, self._n_pending = [], 0

    def _name_column(self, name: str | None, names: Sequence[str]) -> pa.DictionaryArray:
        index = None if name is None else names.index(name)
        indices = pa.repeat(
            pa.scalar(index, schema(self._task)[0].type.index_type), self._n_pending
        )
        return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()), safe=False)

    def _rank(self, key: Key) -> tuple[int, int]:
        return self._task.rank(self._split, *key)

    def finish(self) -> SplitEntry:
        """Complete the file and return its description."""
        self.flush()
        self._writer.close()
        self._sink.close()
        ranks = [self._rank(key) for key in self._written]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        segments: list[Segment] = []
        start = 0
        for key in sorted(self._summaries, key=self._rank):
            segments.append(self._summaries[key].segment(*key, start))
            start += segments[-1].count
        return SplitEntry(
            rows=start,
            bytes=self._path.stat().st_size,
            digest=content_digest(segments),
            segments=tuple(segments),
            sha256=self._sink.sha256.hexdigest(),
            order=None if order == list(range(len(order))) else tuple(order),
        )


class _Summary:
    """The lengths and checksums of the texts of a segment, independent of their division."""

    def __init__(self, task: Task) -> None:
        self._task = task
        # Numbers of questions and of answers with 0, 1, 2, … tokens.
        self._lengths = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        # Separate checksums of the lengths and of the bytes of questions and of answers, so that
        # the sizes of pieces have no effect. SHA-256 would take twice the time (0.6 ns per byte).
        self._checksums = [0, 0, 0, 0]

    def add(self, questions: pa.StringArray, answers: pa.StringArray) -> None:
        """Add texts, which must be valid Arrow arrays."""
        vocabulary = self._task.vocabulary
        limits = self._task.max_question, self._task.max_answer
        for column, (texts, limit) in enumerate(zip((questions, answers), limits, strict=True)):
            offsets, data = texts_as_bytes(texts)
            n_bytes = offsets[1:] - offsets[:-1]
            is_empty = n_bytes.min(initial=1) < 1
            if not is_empty:
                counts = vocabulary.count(np.frombuffer(data, np.uint8), offsets[:-1], n_bytes)
                is_long = limit is not None and counts.max(initial=1) > limit
            if is_empty or is_long:
                most = "any number of" if limit is None else limit
                raise ValueError(f"every text must have 1 to {most} {vocabulary.tokenisation}")
            before = self._lengths[column]
            self._lengths[column] = np.bincount(counts, minlength=len(before))
            self._lengths[column][: len(before)] += before
            # No longer than the longest text requires.
            longest = 2**31 - 1 if limit is None else limit * vocabulary.bytes_per_token
            lengths = n_bytes.astype(np.min_scalar_type(longest)).tobytes()
            for i, content in ((2 * column, lengths), (2 * column + 1, data)):
                self._checksums[i] = zlib.crc32(content, self._checksums[i])

    def segment(self, module: str, difficulty: str | None, start: int) -> Segment:
        """Return the texts as a segment of a split that starts at a row."""
        question_lengths, answer_lengths = (tuple(counts.tolist()) for counts in self._lengths)
        return Segment(
            module=module,
            difficulty=difficulty,
            start=start,
            count=sum(question_lengths),
            checksum="".join(f"{checksum:08x}" for checksum in self._checksums),
            question_lengths=question_lengths,
            answer_lengths=answer_lengths,
        )


class _HashedFile(io.BufferedWriter):
    """A file to write, with the hash of its contents, so that it is not read again."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write bytes and update the hash."""
        self.sha256.update(data)
        return super().write(data)
