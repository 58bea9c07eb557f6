"""Exports of a store for other tools: v1.0 text, Parquet or JSON lines.

Parquet and JSON lines have one file for each split, with the columns split, module, difficulty,
question and answer, a dataset card and Croissant metadata (MLCommons, version 1.0). The card,
`README.md`, begins with the YAML from which Hugging Face `datasets` reads the split of each file.
`prepare` reads each format back into the same store. Files are written atomically.
"""

import gzip
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
from tp_transformer.runtime.run_folder import sha256

FORMATS = ("v1.0", "parquet", "jsonl")
DATA, CARD, CROISSANT = "data", "README.md", "croissant.json"  # the contents of an export
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
_ENCODINGS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines"}
# The terms of Croissant 1.0, from its specification.
_TERMS = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format "
    "includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}

Chosen: TypeAlias = Sequence[tuple[Split, Segment]]
Batches: TypeAlias = Callable[[Split, Segment], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of an export: its path in the folder, and its rows by module."""

    split: str
    path: str
    rows: Mapping[str, int]

    @property
    def split_name(self) -> str:
        """The name of the split in a form that Hugging Face `datasets` accepts."""
        return self.split.replace("-", "_")


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
        _check_v1(store, chosen)
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
            lengths = (segment.question_lengths, segment.answer_lengths)
            n_characters = sum(int(np.arange(len(counts)) @ counts) for counts in lengths)
            member.size = n_characters + 2 * segment.count
            archive.write(member.tobuf(tarfile.USTAR_FORMAT))
            archive.writelines(map(_alternating_lines, batches(split, segment)))
            archive.write(bytes(-member.size % tarfile.BLOCKSIZE))
        archive.write(bytes(2 * tarfile.BLOCKSIZE))


def _alternating_lines(batch: pa.RecordBatch) -> memoryview:
    """Return questions and answers on alternating lines."""
    lines = pc.binary_join_element_wise(batch.column("question"), batch.column("answer"), "", "\n")
    return texts_as_bytes(lines)[1]


def _write_tables(folder: Path, store: Store, kind: str, chosen: Chosen, batches: Batches) -> None:
    """Write one file for each split, the card and the Croissant metadata."""
    files: list[ExportedFile] = []
    (folder / DATA).mkdir(parents=True)
    for split in dict.fromkeys(split for split, _ in chosen):
        segments = [segment for of_split, segment in chosen if of_split is split]
        path = f"{DATA}/{split.name}.{kind}"
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
    (folder / CARD).write_text(_card(store, files), "utf-8", newline="\n")
    metadata = json.dumps(_croissant(folder, store, kind, files), indent=2, ensure_ascii=False)
    (folder / CROISSANT).write_text(metadata + "\n", "utf-8", newline="\n")


def _with_split(batch: pa.RecordBatch, split: str) -> pa.RecordBatch:
    numbers = pa.array(np.zeros(batch.num_rows, np.int8))
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([split]))
    return pa.RecordBatch.from_arrays(
        [names, *batch.columns], schema=pa.schema([("split", names.type), *batch.schema])
    )


def _write_parquet(file: Path, task: Task, batches: Iterator[pa.RecordBatch]) -> None:
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


def _card(store: Store, files: Sequence[ExportedFile]) -> str:
    data_files = [{"split": file.split_name, "path": file.path} for file in files]
    header = {
        "pretty_name": store.task.name,
        "task_categories": ["text-generation"],
        "configs": [{"config_name": "default", "data_files": data_files}],
    }
    lines = ["---", yaml.safe_dump(header, sort_keys=False).rstrip(), "---", ""]
    lines += [f"# {store.task.name}", "", _summary(store), "", "| file | module | rows |"]
    lines += ["|---|---|---:|"]
    for file in files:
        lines += [f"| {file.path} | {name} | {count:,} |" for name, count in file.rows.items()]
    lines += ["", "| column | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in COLUMNS.items()]
    return "\n".join([*lines, ""])


def _croissant(
    folder: Path, store: Store, kind: str, files: Sequence[ExportedFile]
) -> dict[str, Any]:
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": store.task.name,
        "description": _summary(store),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file.path,
                "name": file.path,
                "contentUrl": file.path,
                "contentSize": f"{(folder / file.path).stat().st_size} B",
                "encodingFormat": _ENCODINGS[kind],
                "sha256": sha256(folder / file.path),
            }
            for file in files
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": file.split_name,
                "name": file.split_name,
                "description": f"{sum(file.rows.values()):,} rows",
                "field": [_field(file, name) for name in COLUMNS],
            }
            for file in files
        ],
    }


def _field(file: ExportedFile, column: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{file.split_name}/{column}",
        "name": column,
        "description": COLUMNS[column],
        "dataType": "sc:Text",
        "source": {"fileObject": {"@id": file.path}, "extract": {"column": column}},
    }
