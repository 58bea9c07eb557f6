"""Export in the format of v1.0 of the Mathematics Dataset: a folder, or an archive of it."""

import gzip
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tp_transformer.data.store import TRAIN, Segment, Split, Store, texts_as_bytes
from tp_transformer.foundation.errors import StoreError

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
_ROOT = "mathematics_dataset-v1.0"
_GZIP_LEVEL = 6  # one third of the time of the default 9, for 3% more bytes

Chosen: TypeAlias = Sequence[tuple[Split, Segment]]
Batches: TypeAlias = Callable[[Split, Segment], Iterator[pa.RecordBatch]]


def refuse_unknown_difficulty(store: Store, chosen: Chosen) -> None:
    """Raise for rows that v1.0 has no folder for."""
    for split, segment in chosen:
        if split.name == TRAIN and segment.difficulty is None:
            raise StoreError(
                f"{store.path} does not record the difficulty of {segment.module}, and v1.0 has a "
                f"folder for each; export it as parquet or jsonl"
            )


def _text_name(split: Split, segment: Segment) -> str:
    folder = f"{TRAIN}-{segment.difficulty}" if split.name == TRAIN else split.name
    return f"{folder}/{segment.module}.txt"


def write_folder(folder: Path, chosen: Chosen, batches: Batches) -> None:
    """Write rows to a folder for each split and difficulty, with a file for each module."""
    for split, segment in chosen:
        file = folder / _text_name(split, segment)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as text:
            for batch in batches(split, segment):
                text.write(_alternating_lines(batch))


def write_archive(file: Path, chosen: Chosen, batches: Batches) -> None:
    """Write the same files as a `.tar.gz`."""
    # Without times and owners, so that the same store gives the same bytes.
    with file.open("wb") as raw, gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as archive:
        for split, segment in chosen:
            member = tarfile.TarInfo(f"{_ROOT}/{_text_name(split, segment)}")
            lengths = (segment.question_lengths, segment.answer_lengths)
            n_characters = sum(int(np.arange(len(counts)) @ counts) for counts in lengths)
            member.size = n_characters + 2 * segment.count
            archive.write(member.tobuf(tarfile.USTAR_FORMAT))
            for batch in batches(split, segment):
                archive.write(_alternating_lines(batch))
            archive.write(bytes(-member.size % tarfile.BLOCKSIZE))
        archive.write(bytes(2 * tarfile.BLOCKSIZE))


def _alternating_lines(batch: pa.RecordBatch) -> memoryview:
    """Return questions and answers on alternating lines."""
    lines = pc.binary_join_element_wise(batch.column("question"), batch.column("answer"), "", "\n")
    return texts_as_bytes(lines)[1]
