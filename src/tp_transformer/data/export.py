"""Exports of a store for other tools: v1.0 text, Parquet or JSON lines.

Parquet and JSON lines have one file for each split, with the columns split, module, difficulty,
question and answer, and a dataset card. The card, `README.md`, begins with the YAML from which
Hugging Face `datasets` reads the split of each file. `prepare` reads each format back into the same
store. Files are written atomically.
"""

import gzip
import json
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import yaml

from tp_transformer import __version__
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import Segment, Split, Store, schema, texts_as_bytes
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import StoreError
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import Counted, Update

FORMATS = ("v1.0", "parquet", "jsonl")
DATA, CARD = "data", "README.md"  # the contents of an export as tables
COLUMNS = {
    "split": "the split of the row",
    "module": "the group of questions that are scored together",
    "difficulty": "the difficulty of a training question, if the task has difficulties",
    "question": "the question",
    "answer": "the answer",
}
_ROWS_PER_GROUP = 2**16
_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
_ROOT = "mathematics_dataset-v1.0"
_GZIP_LEVEL = 6  # one third of the time of the default 9, for 3% more bytes

Chosen: TypeAlias = Sequence[tuple[Split, Segment]]
Batches: TypeAlias = Callable[[Split, Segment], Iterator[pa.RecordBatch]]


def export(
    store: Store,
    out: str | Path,
    *,
    format: str,  # noqa: A002
    modules: str | list[str] = "*",
    progress: Update | None = None,
) -> int:
    """Write a store, or some of its modules, in another format; return the number of rows.

    v1.0 is an archive if `out` ends in `.tar.gz` or `.tgz`, and a folder otherwise. An earlier
    export of the same rows is replaced; anything else there is an error.
    """
    path = Path(out)
    chosen = [(split, segment) for split in store.values() for segment in split.select(modules)]
    if not chosen:
        raise StoreError(f"{store.path} has no rows of these modules")
    if format == "v1.0":
        _check_v1(store, chosen)
    if path.exists() and not _is_replaceable(path, store, format, chosen):
        raise StoreError(f"{path} already exists; choose a new name")
    counted = Counted(sum(segment.count for _, segment in chosen), progress)

    def batches(split: Split, segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in split.batches(segment):
            yield batch
            counted.add(batch.num_rows)

    try:
        with atomic_write(path) as unfinished:
            if format != "v1.0":
                _write_tables(unfinished, store, format, chosen, batches)
            elif path.name.endswith(_ARCHIVE_SUFFIXES):
                _write_archive(unfinished, chosen, batches)
            else:
                _write_folder(unfinished, chosen, batches)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error}") from error
    return counted.total


def _is_replaceable(path: Path, store: Store, kind: str, chosen: Chosen) -> bool:
    """Whether a path is an empty folder or an earlier export of the same rows."""
    files = {
        file.relative_to(path).as_posix(): file.stat().st_size
        for file in path.rglob("*")
        if file.is_file()
    }
    if path.is_dir() and not any(path.iterdir()):
        return True
    if kind != "v1.0":
        is_same = set(files) == {CARD, *(_table_path(split, kind) for split, _ in chosen)}
        return is_same and (path / CARD).read_text("utf-8", "replace") == _card(store, kind, chosen)
    sizes = {_v1_name(*key): _v1_size(key[1]) for key in chosen}
    if path.is_dir():
        return files == sizes
    try:
        with tarfile.open(path) as archive:
            members = {member.name: member.size for member in archive}
    except (OSError, EOFError, tarfile.TarError, zlib.error):
        return False
    return members == {f"{_ROOT}/{name}": size for name, size in sizes.items()}


def _check_v1(store: Store, chosen: Chosen) -> None:
    """Raise if v1.0 has no file for some rows."""
    if store.task.name != MATHEMATICS.name:
        raise StoreError(
            "the format v1.0 is only for the Mathematics Dataset; use parquet or jsonl"
        )
    for split, segment in chosen:
        if split.name == TRAIN and segment.difficulty is None:
            raise StoreError(
                f"{store.path} does not record the difficulty of {segment.module}, and v1.0 has a "
                f"folder for each; export it as parquet or jsonl"
            )


def _v1_name(split: Split, segment: Segment) -> str:
    folder = f"{TRAIN}-{segment.difficulty}" if split.name == TRAIN else split.name
    return f"{folder}/{segment.module}.txt"


def _v1_size(segment: Segment) -> int:
    lengths = (segment.question_lengths, segment.answer_lengths)
    return sum(int(np.arange(len(counts)) @ counts) for counts in lengths) + 2 * segment.count


def _write_folder(folder: Path, chosen: Chosen, batches: Batches) -> None:
    """Write rows to a folder for each split and difficulty, with a file for each module."""
    for split, segment in chosen:
        file = folder / _v1_name(split, segment)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as text:
            text.writelines(map(_alternating_lines, batches(split, segment)))


def _write_archive(file: Path, chosen: Chosen, batches: Batches) -> None:
    """Write the same files as a `.tar.gz`."""
    # Without times and owners, so that the same store gives the same bytes.
    with file.open("wb") as raw, gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as archive:
        for split, segment in chosen:
            member = tarfile.TarInfo(f"{_ROOT}/{_v1_name(split, segment)}")
            member.size = _v1_size(segment)
            archive.write(member.tobuf(tarfile.USTAR_FORMAT))
            archive.writelines(map(_alternating_lines, batches(split, segment)))
            archive.write(bytes(-member.size % tarfile.BLOCKSIZE))
        archive.write(bytes(2 * tarfile.BLOCKSIZE))


def _alternating_lines(batch: pa.RecordBatch) -> memoryview:
    """Return questions and answers on alternating lines."""
    lines = pc.binary_join_element_wise(batch.column("question"), batch.column("answer"), "", "\n")
    return texts_as_bytes(lines)[1]


def _table_path(split: Split, kind: str) -> str:
    return f"{DATA}/{split.name}.{kind}"


def _write_tables(folder: Path, store: Store, kind: str, chosen: Chosen, batches: Batches) -> None:
    """Write one file for each split, and the card."""
    (folder / DATA).mkdir(parents=True)
    for split in dict.fromkeys(split for split, _ in chosen):
        rows = (
            _with_split(batch, split.name)
            for of_split, segment in chosen
            if of_split is split
            for batch in batches(split, segment)
        )
        # Opened by Python, because Arrow opens only paths that are UTF-8.
        with (folder / _table_path(split, kind)).open("wb") as file:
            if kind == "parquet":
                _write_parquet(file, store.task, rows)
            else:
                file.writelines(map(_json_lines, rows))
    (folder / CARD).write_text(_card(store, kind, chosen), "utf-8", newline="\n")


def _with_split(batch: pa.RecordBatch, split: str) -> pa.RecordBatch:
    numbers = pa.array(np.zeros(batch.num_rows, np.int8))
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([split]))
    return pa.RecordBatch.from_arrays(
        [names, *batch.columns], schema=pa.schema([("split", names.type), *batch.schema])
    )


def _write_parquet(file: BinaryIO, task: Task, batches: Iterator[pa.RecordBatch]) -> None:
    columns = pa.schema([("split", pa.dictionary(pa.int8(), pa.string())), *schema(task)])
    # Names are dictionary-encoded by Parquet itself. Arrow's schema is not stored in the file, so
    # that names are read as texts.
    with parquet.ParquetWriter(file, columns, compression="zstd", store_schema=False) as writer:
        for batch in batches:
            writer.write_batch(batch, _ROWS_PER_GROUP)


def _json_lines(batch: pa.RecordBatch) -> memoryview:
    """Return rows of one segment as JSON lines; Arrow joins the columns."""
    names = {name: batch.column(name)[0].as_py() for name in ("split", "module", "difficulty")}
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


def _summary(store: Store) -> str:
    source = store.source
    origin = ", ".join(str(source[key]) for key in ("kind", "name") if key in source)
    origin += f", seed {source['seed']}" if "seed" in source else ""
    return (
        f"Questions and answers of the task {store.task.name} ({origin}), exported by "
        f"tp-transformer {__version__}."
    )


def _card(store: Store, kind: str, chosen: Chosen) -> str:
    rows = Counter[tuple[Split, str]]()
    for split, segment in chosen:
        rows[split, segment.module] += segment.count
    splits = dict.fromkeys(split for split, _ in chosen)
    header = {
        "pretty_name": store.task.name,
        "task_categories": ["text-generation"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    # Names of splits in a form that Hugging Face `datasets` accepts.
                    {"split": split.name.replace("-", "_"), "path": _table_path(split, kind)}
                    for split in splits
                ],
            }
        ],
    }
    lines = ["---", yaml.safe_dump(header, sort_keys=False).rstrip(), "---", ""]
    lines += [f"# {store.task.name}", "", _summary(store), "", "| file | module | rows |"]
    lines += ["|---|---|---:|"]
    lines += [
        f"| {_table_path(split, kind)} | {module} | {count:,} |"
        for (split, module), count in rows.items()
    ]
    lines += ["", "| column | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in COLUMNS.items()]
    return "\n".join([*lines, ""])
