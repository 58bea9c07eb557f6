"""`store.json`: the description of a store, validated when it is read.

It lists the splits, and for each its file and its segments: numbers of rows, lengths of texts,
checksums of texts. All counts are checked against each other and against the size of the file, so
that code that uses a store need not check types or ranges.
"""

import hashlib
import json
import reprlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tp_transformer.data.task import TRAIN, Task, read_as, read_fields
from tp_transformer.errors import StoreError
from tp_transformer.ranges import Count, PositiveInt

MANIFEST = "store.json"
_HEADER = {"format": "tp-transformer-store", "version": 2}

_BYTES_PER_ROW = 2 * (4 + 1) + 2  # at least: offsets and texts of two columns, two names
# The fields of `source` that count rows by file.
_COUNTS = ("redrawn", "still_in_training", "training_repeats")


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one module and difficulty, with the lengths of their texts."""

    module: str
    difficulty: str | None
    start: Count
    count: PositiveInt
    checksum: str  # of the texts; independent of the layout of the file
    question_lengths: tuple[Count, ...]  # number of questions with 0, 1, 2, … tokens
    answer_lengths: tuple[Count, ...]

    @property
    def rows(self) -> range:
        """The numbers of the rows in the split."""
        return range(self.start, self.start + self.count)


@dataclass(frozen=True)
class SplitEntry:
    """The description of one split."""

    rows: Count
    bytes: Count
    digest: str  # of the content; see `content_digest`
    segments: tuple[Segment, ...]
    sha256: str  # of the file
    # The record batches of the file in the order of the rows; None if that is their order.
    order: tuple[Count, ...] | None


@dataclass(frozen=True)
class _Skipped:
    """Rows of a file of the source that were skipped."""

    file: str
    reason: str
    rows: Count
    first_line: Count | None


@dataclass(frozen=True)
class Manifest:
    """The contents and the source of a store."""

    task: Task
    made_by: str
    source: dict[str, Any]
    skipped: Any  # a list of mappings with the fields of `_Skipped`
    splits: dict[str, SplitEntry]


def read_manifest(folder: Path) -> tuple[Manifest, bool]:
    """Read and validate `store.json`; the second value is whether it matches its hash.

    Raises:
        StoreError: if it is missing or damaged
    """
    values = _load(folder)
    try:
        digest = read_as(str, values.pop("sha256", None), "sha256")
        is_unchanged = digest == _hash_of(values)
        values = {name: value for name, value in values.items() if name not in _HEADER}
        manifest = read_fields(Manifest, values, "")
        check_source(manifest.source)
        read_as(tuple[_Skipped, ...], manifest.skipped, "skipped")
        order = list(manifest.task.splits)
        for name in manifest.splits:
            if name not in order:
                raise ValueError(f"splits has {reprlib.repr(name)}, which is no split")
        splits = {name: manifest.splits[name] for name in order if name in manifest.splits}
        for name, entry in splits.items():
            _check_split(entry, name, manifest.task)
    except ValueError as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: {error}") from error
    return replace(manifest, splits=splits), is_unchanged


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `store.json`, including a hash of its values."""
    check_source(manifest.source)
    values = {
        **_HEADER,
        "task": manifest.task.to_json(),
        "made_by": manifest.made_by,
        "source": manifest.source,
        "skipped": manifest.skipped,
        "splits": {name: asdict(entry) for name, entry in manifest.splits.items()},
    }
    text = json.dumps({**values, "sha256": _hash_of(values)})
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


def is_store(folder: str | Path) -> bool:
    """Whether a folder is a store, of any version and even if damaged."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == _HEADER["format"]


def content_digest(segments: Sequence[Segment]) -> str:
    """Return a hash of the rows of a split, independent of the layout of the file."""
    content = [[s.module, s.difficulty, s.count, s.checksum] for s in segments]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _load(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    if not folder.is_dir():
        raise StoreError(
            f"there is no store {folder}; create one with `tpt data prepare` or `tpt data generate`"
        )
    if not file.is_file():
        raise StoreError(f"{folder} is not a store: it has no {MANIFEST}")
    try:
        values = json.loads(file.read_text("utf-8"), parse_constant=_refuse_constant)
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
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def _hash_of(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def check_source(source: dict[str, Any]) -> None:
    """Raise unless a source has only plain values, and lists and mappings of plain values."""
    values = json.loads(json.dumps(source), parse_constant=_refuse_constant)  # no tuples
    for key, value in values.items():
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, (list, dict)) and any(isinstance(v, (list, dict)) for v in inner):
            raise ValueError(f"source has nested lists or mappings at {reprlib.repr(key)}")
    for key in _COUNTS:
        read_as(dict[str, Count], values.get(key, {}), f"source.{key}")


def _check_split(entry: SplitEntry, split: str, task: Task) -> None:
    where = f"splits.{split}"
    start, rank = 0, (-1, 0)
    for number, segment in enumerate(entry.segments):
        at = f"{where}.segments[{number}]"
        _check_segment(segment, split, task, at)
        if segment.start != start:
            raise ValueError(f"{at}.start is {segment.start:,}, where {start:,} rows precede it")
        before, rank = rank, task.rank(split, segment.module, segment.difficulty)
        if not before < rank:
            raise ValueError(f"{at} is not in the order of the modules")
        start += segment.count
    if entry.rows != start:
        raise ValueError(f"{where}.rows is {entry.rows:,}, and its segments have {start:,}")
    if entry.rows * _BYTES_PER_ROW > entry.bytes:
        raise ValueError(f"{where} has {entry.rows:,} rows in {entry.bytes:,} bytes")
    if entry.digest != content_digest(entry.segments):
        raise ValueError(f"{where}.digest is not that of its segments")
    if entry.order is not None and sorted(entry.order) != list(range(len(entry.order))):
        raise ValueError(f"{where}.order must have each number once")


def _check_segment(segment: Segment, split: str, task: Task, where: str) -> None:
    if not task.has(split, segment.module):
        module = reprlib.repr(segment.module)
        raise ValueError(f"{where}.module is {module}, which {split} does not have")
    difficulty = segment.difficulty
    if difficulty is not None and (split != TRAIN or difficulty not in task.difficulties):
        raise ValueError(f"{where}.difficulty is {reprlib.repr(difficulty)}")
    for noun, counts, longest in (
        ("question", segment.question_lengths, task.max_question),
        ("answer", segment.answer_lengths, task.max_answer),
    ):
        must = f"{where}.{noun}_lengths must count"
        if longest is not None and not 2 <= len(counts) <= longest + 1:
            raise ValueError(f"{must} texts of at most {longest} characters or words")
        if len(counts) < 2 or counts[0] or not counts[-1] or sum(counts) != segment.count:
            raise ValueError(f"{must} {segment.count:,} texts, none of them empty")
