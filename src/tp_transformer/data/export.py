"""The store, for other tools: v1.0 text, Parquet or JSON lines.

`prepare` reads each of them back into the same store. Everything is written to a hidden place
first and takes its name when it is complete.
"""

import gzip
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tp_transformer.atomic import whole
from tp_transformer.data.mathematics.modules import INTERPOLATE
from tp_transformer.data.store import SCHEMA, TRAIN, Segment, Split, Store
from tp_transformer.data.summary import texts_as_bytes
from tp_transformer.errors import StoreError
from tp_transformer.progress import Update

FORMATS = ("v1.0", "parquet", "jsonl")
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
_ROOT = "mathematics_dataset-v1.0"
_ROWS_PER_GROUP = 2**16
_GZIP_LEVEL = 6  # over a third of the time of the default of 9, for 3% more bytes

Chosen: TypeAlias = list[tuple[Split, Segment]]


def export(
    store: Store,
    out: str | Path,
    *,
    format: str,  # noqa: A002
    modules: str | list[str] = "*",
    progress: Update | None = None,
) -> int:
    """Write a store, or some modules of it, in another format; gives the number of rows.

    v1.0 becomes an archive if `out` ends in `.tar.gz` or `.tgz`, and a folder otherwise.
    """
    path = Path(out)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise StoreError(f"{path} already exists; choose a new name")
    chosen = [(split, segment) for split in store.values() for segment in split.select(modules)]
    if not chosen:
        raise StoreError(f"{store.path} has no rows of the modules asked for")
    if format == "v1.0":
        _refuse_unknown_difficulty(store, chosen)
    counted = _Counted(sum(segment.count for _, segment in chosen), progress)
    try:
        with whole(path) as unfinished:
            if format != "v1.0":
                _write_tables(unfinished, format, chosen, counted)
            elif path.name.endswith(ARCHIVE_SUFFIXES):
                _write_archive(unfinished, chosen, counted)
            else:
                _write_folder(unfinished, chosen, counted)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error}") from error
    return counted.total


class _Counted:
    """Counts the rows that pass, for the progress bar."""

    def __init__(self, total: int, progress: Update | None) -> None:
        self.total, self._progress, self._done = total, progress, 0

    def batches(self, split: Split, segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in split.batches(segment):
            yield batch
            self._done += batch.num_rows
            if self._progress:
                self._progress(self._done, self.total)


def _refuse_unknown_difficulty(store: Store, chosen: Chosen) -> None:
    for split, segment in chosen:
        if split.name == TRAIN and segment.difficulty is None:
            raise StoreError(
                f"{store.path} does not tell the difficulty of {segment.module}, and v1.0 has a "
                f"folder for each; export it as parquet or jsonl"
            )


def _text_name(split: Split, segment: Segment) -> str:
    folder = f"{TRAIN}-{segment.difficulty}" if split.name == TRAIN else split.name
    return f"{folder}/{segment.module}.txt"


def _write_folder(folder: Path, chosen: Chosen, counted: _Counted) -> None:
    for split, segment in chosen:
        file = folder / _text_name(split, segment)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as text:
            for batch in counted.batches(split, segment):
                text.write(_alternating_lines(batch))


def _write_archive(file: Path, chosen: Chosen, counted: _Counted) -> None:
    # No times and no owners: the same store gives the same bytes.
    with file.open("wb") as raw, gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as archive:
        for split, segment in chosen:
            member = tarfile.TarInfo(f"{_ROOT}/{_text_name(split, segment)}")
            lengths = (segment.question_lengths, segment.answer_lengths)
            n_characters = sum(int(np.arange(len(counts)) @ counts) for counts in lengths)
            member.size = n_characters + 2 * segment.count
            archive.write(member.tobuf(tarfile.USTAR_FORMAT))
            for batch in counted.batches(split, segment):
                archive.write(_alternating_lines(batch))
            archive.write(bytes(-member.size % tarfile.BLOCKSIZE))
        archive.write(bytes(2 * tarfile.BLOCKSIZE))


def _alternating_lines(batch: pa.RecordBatch) -> memoryview:
    """Questions and answers on alternating lines."""
    lines = pc.binary_join_element_wise(batch.column("question"), batch.column("answer"), "", "\n")
    return texts_as_bytes(lines)[1]


def _write_tables(folder: Path, kind: str, chosen: Chosen, counted: _Counted) -> None:
    """One file for each split and module, named as the hub names them."""
    files: dict[tuple[str, str], list[tuple[Split, Segment]]] = {}
    for split, segment in chosen:
        files.setdefault((split.name, segment.module), []).append((split, segment))
    write = _write_parquet if kind == "parquet" else _write_json_lines
    for (split_name, module), parts in files.items():
        called = "test" if split_name == INTERPOLATE else split_name
        file = folder / module / f"{called}-00000-of-00001.{kind}"
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, (batch for part in parts for batch in counted.batches(*part)))


def _write_parquet(file: Path, batches: Iterator[pa.RecordBatch]) -> None:
    # Names stay numbers until Parquet numbers them itself. Without Arrow's schema in the file, they
    # are read as the texts that they are.
    with parquet.ParquetWriter(file, SCHEMA, compression="zstd", store_schema=False) as writer:
        for batch in batches:
            writer.write_batch(batch, _ROWS_PER_GROUP)


def _write_json_lines(file: Path, batches: Iterator[pa.RecordBatch]) -> None:
    # The 69 characters need no escape, so the lines are put together by Arrow, column by column.
    with file.open("wb") as text:
        for batch in batches:
            text.write(_json_lines(batch))


def _json_lines(batch: pa.RecordBatch) -> memoryview:
    names = {name: batch.column(name)[0].as_py() for name in ("module", "difficulty")}
    lines = pc.binary_join_element_wise(
        json.dumps(names).removesuffix("}") + ', "question": "',
        batch.column("question"),
        '", "answer": "',
        batch.column("answer"),
        '"}\n',
        "",
    )
    return texts_as_bytes(lines)[1]
