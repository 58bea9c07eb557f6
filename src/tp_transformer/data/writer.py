"""Writing a store: in bounded memory, in any order, whole or not at all.

Segments may be appended in any order, as an archive happens to hold them. Each record batch is
written once, where the file then ends; the footer, which lists the batches, is put in the order
of the table of modules when all are there. Readers follow the footer. The alternative, writing
everything a second time in order, costs as much disk and time again.
"""

import hashlib
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from tp_transformer import __version__
from tp_transformer.atomic import whole
from tp_transformer.data.manifest import (
    STORE_SPLITS,
    TRAIN,
    Segment,
    SplitEntry,
    content_digest,
    is_store,
    rank,
    write_manifest,
)
from tp_transformer.data.mathematics.modules import DIFFICULTIES
from tp_transformer.data.store import SCHEMA
from tp_transformer.data.summary import Summary, has_foreign, texts_as_bytes
from tp_transformer.errors import StoreError

# About 20 MB of questions and answers; the full dataset has about 500 such batches.
ROWS_PER_BATCH = 2**18

Texts: TypeAlias = pa.StringArray | Sequence[str]
Key: TypeAlias = tuple[str, str | None]  # module, difficulty


@contextmanager
def write_store(
    folder: str | Path, source: dict[str, Any], rows_per_batch: int = ROWS_PER_BATCH
) -> Iterator["StoreWriter"]:
    """Write a store, which takes its name when the block ends well; `source` says whence it is.

    An earlier store there is replaced at that moment and not before; anything else is refused.
    """
    path = Path(folder)
    refuse_other(path)
    try:
        with whole(path) as unfinished:
            unfinished.mkdir()
            with StoreWriter(unfinished, source, rows_per_batch) as writer:
                yield writer
                writer.finish()
    except OSError as error:
        raise StoreError(f"cannot write a store to {path}: {error}") from error


def refuse_other(path: Path) -> None:
    """Refuse to replace anything but a store or an empty folder."""
    if path.is_dir():
        if is_store(path) or not any(path.iterdir()):
            return
        raise StoreError(f"{path} already holds something that is not a store; choose a new folder")
    if path.exists():
        raise StoreError(f"{path} is a file; a store needs a folder of its own")


class StoreWriter:
    """Appends questions and answers to the files of a store."""

    def __init__(self, folder: Path, source: dict[str, Any], rows_per_batch: int) -> None:
        self.skipped: list[dict[str, Any]] = []  # what the source held and the store does not
        self._folder = folder
        self._source = source
        self._rows_per_batch = rows_per_batch
        self._splits: dict[str, _SplitWriter] = {}
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

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
        """Add rows to a module and difficulty of `train`, `interpolate` or `extrapolate`.

        Large pieces, one module after another, make few and large record batches; a change of
        module ends one. `checked` promises that every character is one of the 69.
        """
        if module not in STORE_SPLITS[split]:
            raise ValueError(f"{split} has no module {module!r}")
        if difficulty is not None and (split != TRAIN or difficulty not in DIFFICULTIES):
            raise ValueError(f"{split} has no difficulty {difficulty!r}")
        if split not in self._splits:
            file = self._folder / f"{split}.arrow"
            self._splits[split] = _SplitWriter(file, split, self._rows_per_batch, self._files)
        columns = [_as_array(texts) for texts in (questions, answers)]
        if len(columns[0]) != len(columns[1]):
            raise ValueError(f"{len(columns[0])} questions but {len(columns[1])} answers")
        if not checked and any(has_foreign(texts_as_bytes(texts)[1]) for texts in columns):
            raise ValueError("a character is not one of the dataset's 69")
        for name, other in self._splits.items():
            if name != split:
                other.flush()  # so that one batch at most waits in memory
        if len(columns[0]):
            self._splits[split].append((module, difficulty), *columns)

    def finish(self) -> None:
        """Complete the files and describe them."""
        write_manifest(
            self._folder,
            made_by=f"tp-transformer {__version__}",
            source=self._source,
            skipped=self.skipped,
            splits={
                name: asdict(self._splits[name].finish())
                for name in STORE_SPLITS
                if name in self._splits
            },
        )


class _SplitWriter:
    def __init__(self, file: Path, split: str, rows_per_batch: int, files: ExitStack) -> None:
        self._path = file
        self._split = split
        self._rows_per_batch = rows_per_batch
        self._modules = pa.array(STORE_SPLITS[split])
        self._difficulties = pa.array(DIFFICULTIES)
        self._sink = files.enter_context(_HashedFile(file))
        self._writer = ipc.new_file(self._sink, SCHEMA)
        self._summaries: dict[Key, Summary] = {}
        self._written: list[tuple[Key, int]] = []  # the batches, in the order of the file
        self._key: Key | None = None
        self._pending: list[tuple[pa.StringArray, pa.StringArray]] = []
        self._n_pending = 0

    def append(self, key: Key, questions: pa.StringArray, answers: pa.StringArray) -> None:
        if key != self._key:
            self.flush()
            self._key = key
        self._summaries.setdefault(key, Summary()).add(questions, answers)
        while len(questions):
            fits = self._rows_per_batch - self._n_pending
            self._pending.append((questions[:fits], answers[:fits]))
            self._n_pending += len(self._pending[-1][0])
            questions, answers = questions[fits:], answers[fits:]
            if self._n_pending == self._rows_per_batch:
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait as a record batch."""
        if self._key is None or not self._n_pending:
            return
        module, difficulty = self._key
        n_rows = self._n_pending
        columns = [
            _name_column(self._modules, module, n_rows),
            _name_column(self._difficulties, difficulty, n_rows),
            *(_joined(chunks) for chunks in zip(*self._pending, strict=True)),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        self._written.append((self._key, n_rows))
        self._pending, self._n_pending = [], 0

    def finish(self) -> SplitEntry:
        """Complete the file, and describe it for the manifest."""
        self.flush()
        footer_at, sha256 = self._sink.tell(), self._sink.sha256.copy()
        self._writer.close()
        self._sink.close()
        ranks = [rank(self._split, *key) for key, _ in self._written]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        if order != list(range(len(order))):
            _reorder_batches(self._path, order)
            with ipc.open_file(self._path) as file:  # as others read it
                sizes = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
            if sizes != [self._written[i][1] for i in order]:
                raise RuntimeError(f"{self._path} does not list its batches in the new order")
        with self._path.open("rb") as file:  # the footer, in the order it has now
            file.seek(footer_at)
            sha256.update(file.read())
        segments: list[Segment] = []
        start = 0
        for key in sorted(self._summaries, key=lambda key: rank(self._split, *key)):
            segments.append(self._summaries[key].segment(*key, start))
            start += segments[-1].count
        return SplitEntry(
            rows=start,
            bytes=self._path.stat().st_size,
            digest=content_digest(segments),
            segments=tuple(segments),
            sha256=sha256.hexdigest(),
        )


class _HashedFile(io.BufferedWriter):
    """A file to write, and the hash of what has been written: it is not read a second time."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write bytes, and add them to the hash."""
        self.sha256.update(data)
        return super().write(data)


def _name_column(names: pa.StringArray, name: str | None, count: int) -> pa.DictionaryArray:
    if name is None:
        numbers = pa.nulls(count, pa.int8())
    else:
        numbers = pa.array(np.full(count, names.index(name).as_py(), np.int8))
    return pa.DictionaryArray.from_arrays(numbers, names, safe=False)


def _joined(chunks: Sequence[pa.StringArray]) -> pa.StringArray:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _as_array(texts: Texts) -> pa.StringArray:
    array = texts if isinstance(texts, pa.StringArray) else pa.array(texts, pa.string())
    if array.null_count:
        raise ValueError("a question or an answer is missing")
    return array


def _reorder_batches(path: Path, order: Sequence[int]) -> None:
    """Put the list of record batches in an Arrow file's footer into another order.

    The file ends in the footer, its length in 4 bytes, and `ARROW1`. The footer is a flatbuffer
    table, whose fourth field is a vector of blocks of 24 bytes: where a batch lies and how long
    it is.
    """
    with path.open("r+b") as file:
        file.seek(-10, 2)
        (length,) = struct.unpack("<i6x", file.read(10))
        file.seek(-10 - length, 2)
        position = file.tell()
        footer = bytearray(file.read(length))

        def number(kind: str, at: int) -> int:
            return int(struct.unpack_from(f"<{kind}", footer, at)[0])

        table = number("I", 0)
        fields = table - number("i", table)  # the table's field offsets, after two lengths
        vector = table + number("H", fields + 4 + 2 * 3)
        vector += number("I", vector)
        if number("I", vector) != len(order):
            raise RuntimeError(f"{path} lists {number('I', vector)} batches, not {len(order)}")
        first = vector + 4
        blocks = [bytes(footer[first + 24 * i :][:24]) for i in order]
        footer[first : first + 24 * len(order)] = b"".join(blocks)
        file.seek(position)
        file.write(footer)
