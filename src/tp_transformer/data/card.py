"""The description of an export: a dataset card and Croissant metadata.

The card, `README.md`, begins with the YAML from which Hugging Face `datasets` reads the split of
each file. `croissant.json` follows the Croissant format of MLCommons, version 1.0.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tp_transformer import __version__
from tp_transformer.data.store import Store
from tp_transformer.foundation.run_folder import sha256

CARD, CROISSANT = "README.md", "croissant.json"
COLUMNS = {
    "split": "the split of the row",
    "module": "the group of questions that are scored together",
    "difficulty": "the difficulty of a training question, if the task has difficulties",
    "question": "the question",
    "answer": "the answer",
}
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


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of an export: its path in the folder, and its rows by module."""

    split: str
    path: str
    rows: Mapping[str, int]


def write_descriptions(
    folder: Path, store: Store, kind: str, files: Sequence[ExportedFile]
) -> None:
    """Write the card and the Croissant metadata of the files of an export."""
    (folder / CARD).write_text(_card(store, files), "utf-8", newline="\n")
    text = json.dumps(_croissant(folder, store, kind, files), indent=2, ensure_ascii=False)
    (folder / CROISSANT).write_text(text + "\n", "utf-8", newline="\n")


def _summary(store: Store) -> str:
    source = store.source
    origin = ", ".join(str(source[key]) for key in ("kind", "name") if key in source)
    origin += f", seed {source['seed']}" if "seed" in source else ""
    return (
        f"Questions and answers of the task {store.task.name} ({origin}), exported by "
        f"tp-transformer {__version__}."
    )


def split_name(split: str) -> str:
    """Return the name of a split in a form that Hugging Face `datasets` accepts."""
    return split.replace("-", "_")


def _card(store: Store, files: Sequence[ExportedFile]) -> str:
    data_files = [{"split": split_name(file.split), "path": file.path} for file in files]
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
                "@id": split_name(file.split),
                "name": split_name(file.split),
                "description": f"{sum(file.rows.values()):,} rows",
                "field": [_field(file, name) for name in COLUMNS],
            }
            for file in files
        ],
    }


def _field(file: ExportedFile, column: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{split_name(file.split)}/{column}",
        "name": column,
        "description": COLUMNS[column],
        "dataType": "sc:Text",
        "source": {"fileObject": {"@id": file.path}, "extract": {"column": column}},
    }
