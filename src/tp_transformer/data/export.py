"""Exports of a store for other tools: v1.0 text, Parquet or JSON lines.

Parquet and JSON lines have one file for each split, with the columns split, module, difficulty,
question and answer, and a description of the files (`card.py`). `prepare` reads each format back
into the same store. Files are written atomically.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tp_transformer.data.card import ExportedFile, write_descriptions
from tp_transformer.data.mathematics import v1
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import Segment, Split, Store, schema, texts_as_bytes
from tp_transformer.data.task import Task
from tp_transformer.foundation.atomic import whole
from tp_transformer.foundation.errors import StoreError
from tp_transformer.foundation.progress import Counted, Update

FORMATS = ("v1.0", "parquet", "jsonl")
DATA = "data"  # the folder of the files of an export
SPLIT = "split"
_ROWS_PER_GROUP = 2**16


def export(
    store: Store,
    out: str | Path,
    *,
    format: str,  # noqa: A002
    modules: str | list[str] = "*",
    progress: Update | None = None,
) -> int:
    """Write a store, or some of its modules, in another format; return the number of rows.

    v1.0 is an archive if `out` ends in `.tar.gz` or `.tgz`, and a folder otherwise.
    """
    path = Path(out)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise StoreError(f"{path} already exists; choose a new name")
    chosen = [(split, segment) for split in store.values() for segment in split.select(modules)]
    if not chosen:
        raise StoreError(f"{store.path} has no rows of these modules")
    if format == "v1.0":
        if store.task.name != MATHEMATICS.name:
            raise StoreError(
                "the format v1.0 is only for the Mathematics Dataset; use parquet or jsonl"
            )
        v1.refuse_unknown_difficulty(store, chosen)
    counted = Counted(sum(segment.count for _, segment in chosen), progress)

    def batches(split: Split, segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in split.batches(segment):
            yield batch
            counted.add(batch.num_rows)

    try:
        with whole(path) as unfinished:
            if format != "v1.0":
                _write_tables(unfinished, store, format, chosen, batches)
            elif path.name.endswith(v1.ARCHIVE_SUFFIXES):
                v1.write_archive(unfinished, chosen, batches)
            else:
                v1.write_folder(unfinished, chosen, batches)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error}") from error
    return counted.total


def _write_tables(
    folder: Path, store: Store, kind: str, chosen: v1.Chosen, batches: v1.Batches
) -> None:
    """Write one file for each split, and the description of the files."""
    files: list[ExportedFile] = []
    for split in dict.fromkeys(split for split, _ in chosen):
        segments = [segment for of_split, segment in chosen if of_split is split]
        path = f"{DATA}/{split.name}.{kind}"
        (folder / DATA).mkdir(parents=True, exist_ok=True)
        rows_of_split = (
            _with_split(batch, split.name)
            for segment in segments
            for batch in batches(split, segment)
        )
        if kind == "parquet":
            _write_parquet(folder / path, store.task, rows_of_split)
        else:
            with (folder / path).open("wb") as text:
                text.writelines(map(_json_lines, rows_of_split))
        rows = Counter[str]()
        for segment in segments:
            rows[segment.module] += segment.count
        files.append(ExportedFile(split=split.name, path=path, rows=rows))
    write_descriptions(folder, store, kind, files)


def _with_split(batch: pa.RecordBatch, split: str) -> pa.RecordBatch:
    numbers = pa.array(np.zeros(batch.num_rows, np.int8))
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([split]))
    return pa.RecordBatch.from_arrays(
        [names, *batch.columns], schema=pa.schema([(SPLIT, names.type), *batch.schema])
    )


def _write_parquet(file: Path, task: Task, batches: Iterator[pa.RecordBatch]) -> None:
    columns = pa.schema([(SPLIT, pa.dictionary(pa.int8(), pa.string())), *schema(task)])
    # Names are dictionary-encoded by Parquet itself. Arrow's schema is not stored in the file, so
    # that names are read as texts.
    with parquet.ParquetWriter(file, columns, compression="zstd", store_schema=False) as writer:
        for batch in batches:
            writer.write_batch(batch, _ROWS_PER_GROUP)


def _json_lines(batch: pa.RecordBatch) -> memoryview:
    """Return rows of one segment as JSON lines; Arrow joins the columns."""
    names = {name: batch.column(name)[0].as_py() for name in (SPLIT, "module", "difficulty")}
    lines = pc.binary_join_element_wise(
        json.dumps(names).removesuffix("}") + ', "question": "',
        _escaped(batch.column("question")),
        '", "answer": "',
        _escaped(batch.column("answer")),
        '"}\n',
        "",
    )
    return texts_as_bytes(lines)[1]


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as JSON strings; no token is a control character."""
    for character in ("\\", '"'):
        if character.encode() in bytes(texts_as_bytes(texts)[1]):
            texts = pc.replace_substring(texts, character, "\\" + character)
    return texts
