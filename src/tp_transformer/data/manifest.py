"""`store.json`: the description of a store, validated when it is read.

It lists the splits, and for each its file and its segments: numbers of rows, lengths of texts,
checksums of texts. All counts are checked against each other and against the size of the file, so
that code that uses a store need not check types or ranges.
"""

import hashlib
import json
import reprlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tp_transformer.data.checked import check_keys, checked, whole
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.foundation.errors import StoreError

MANIFEST = "store.json"
# Stores of version 1 contain the Mathematics Dataset and do not record their task.
FORMAT, VERSIONS = "tp-transformer-store", (1, 2)

_BYTES_PER_ROW = 2 * (4 + 1) + 2  # at least: offsets and texts of two columns, two names
_HASH = "sha256"
# The fields of `source` that count rows by file.
_COUNTS = ("redrawn", "still_in_training", "training_repeats")


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one module and difficulty, with the lengths of their texts."""

    module: str
    difficulty: str | None
    start: int
    count: int
    checksum: str  # of the texts; independent of the layout of the file
    question_lengths: tuple[int, ...]  # number of questions with 0, 1, 2, … tokens
    answer_lengths: tuple[int, ...]

    @property
    def rows(self) -> range:
        """The numbers of the rows in the split."""
        return range(self.start, self.start + self.count)


@dataclass(frozen=True)
class SplitEntry:
    """The description of one split."""

    rows: int
    bytes: int
    digest: str  # of the content; see `content_digest`
    segments: tuple[Segment, ...]
    sha256: str | None = None  # of the file; absent in older stores
    # The record batches of the file in the order of the rows; absent if that is their order.
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents and the source of a store."""

    task: Task
    made_by: str
    source: dict[str, Any]
    skipped: list[dict[str, Any]]
    splits: dict[str, SplitEntry]
    sha256: str | None = None  # of all other values; absent in older stores


def read_manifest(folder: Path) -> Manifest:
    """Read and validate `store.json`; raise if it is damaged."""
    values = _load(folder)
    try:
        return _manifest(values)
    except ValueError as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: {error}") from error


def write_manifest(
    folder: Path,
    *,
    task: Task,
    made_by: str,
    source: dict[str, Any],
    skipped: list[dict[str, Any]],
    splits: dict[str, dict[str, Any]],
) -> None:
    """Write `store.json`, including a hash of its values."""
    values = {
        "format": FORMAT,
        "version": VERSIONS[-1],
        "task": task.to_json(),
        "made_by": made_by,
        "source": source,
        "skipped": skipped,
        "splits": splits,
    }
    text = json.dumps({**values, _HASH: _hash_of(values)})
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


def matches_hash(folder: Path) -> bool | None:
    """Whether `store.json` is unchanged since it was written; None if it has no hash."""
    values = _load(folder)
    recorded = values.pop(_HASH, None)
    return None if recorded is None else recorded == _hash_of(values)


def is_store(folder: str | Path) -> bool:
    """Whether a folder is a store, of any version and even if damaged."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


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
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a store: {MANIFEST} does not describe one")
    if values.get("version") not in VERSIONS:
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


def _manifest(values: dict[str, Any]) -> Manifest:
    keys = {"format", "version", "made_by", "source", "skipped", "splits"}
    keys |= {"task"} if values["version"] > 1 else set()
    check_keys(values, "it", keys, optional=(_HASH,))
    task = Task.from_json(values["task"]) if "task" in keys else MATHEMATICS
    _check_source(values["source"])
    for number, entry in enumerate(checked(values["skipped"], list, "skipped")):
        _check_skipped(entry, f"skipped[{number}]")
    splits = checked(values["splits"], dict, "splits")
    for name in splits:
        if name not in task.splits:
            raise ValueError(f"splits has {reprlib.repr(name)}, which is no split")
    return Manifest(
        task=task,
        made_by=checked(values["made_by"], str, "made_by"),
        source=values["source"],
        skipped=values["skipped"],
        splits={name: _split(splits[name], name, task) for name in task.splits if name in splits},
        sha256=_hash(values, "it"),
    )


def _check_source(source: Any) -> None:
    """Return the source of a store: plain values, and lists and mappings of plain values."""
    for key, value in checked(source, dict, "source").items():
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, (list, dict)) and any(isinstance(v, (list, dict)) for v in inner):
            raise ValueError(f"source has lists within lists at {reprlib.repr(key)}")
    for key in _COUNTS:
        for name, count in checked(source.get(key, {}), dict, f"source.{key}").items():
            whole(count, f"source.{key}.{reprlib.repr(name)}")


def _check_skipped(entry: Any, where: str) -> None:
    check_keys(entry, where, {"file", "reason", "rows", "first_line"})
    for key in ("file", "reason"):
        checked(entry[key], str, f"{where}.{key}")
    whole(entry["rows"], f"{where}.rows")
    if entry["first_line"] is not None:
        whole(entry["first_line"], f"{where}.first_line")


def _split(entry: Any, split: str, task: Task) -> SplitEntry:
    where = f"splits.{split}"
    check_keys(entry, where, {"rows", "bytes", "digest", "segments"}, optional=(_HASH, "order"))
    segments: list[Segment] = []
    start, rank = 0, (-1, 0)
    for number, described in enumerate(checked(entry["segments"], list, f"{where}.segments")):
        segment = _segment(described, split, task, start, f"{where}.segments[{number}]")
        before, rank = rank, task.rank(split, segment.module, segment.difficulty)
        if not before < rank:
            raise ValueError(f"{where}.segments[{number}] is not in the order of the modules")
        segments.append(segment)
        start += segment.count
    n_rows, n_bytes = (whole(entry[key], f"{where}.{key}") for key in ("rows", "bytes"))
    if n_rows != start:
        raise ValueError(f"{where}.rows is {n_rows:,}, and its segments have {start:,}")
    if n_rows * _BYTES_PER_ROW > n_bytes:
        raise ValueError(f"{where} has {n_rows:,} rows in {n_bytes:,} bytes")
    if entry["digest"] != content_digest(segments):
        raise ValueError(f"{where}.digest is not that of its segments")
    return SplitEntry(
        rows=n_rows,
        bytes=n_bytes,
        digest=entry["digest"],
        segments=tuple(segments),
        sha256=_hash(entry, where),
        order=_order(entry.get("order"), f"{where}.order"),
    )


def _order(order: Any, where: str) -> tuple[int, ...] | None:
    if order is None:
        return None
    numbers = tuple(whole(number, where) for number in checked(order, list, where))
    if sorted(numbers) != list(range(len(numbers))):
        raise ValueError(f"{where} must have each number once")
    return numbers


def _segment(entry: Any, split: str, task: Task, start: int, where: str) -> Segment:
    check_keys(entry, where, Segment.__dataclass_fields__.keys())
    module, difficulty = entry["module"], entry["difficulty"]
    if not isinstance(module, str) or not task.has(split, module):
        raise ValueError(f"{where}.module is {reprlib.repr(module)}, which {split} does not have")
    if difficulty is not None and (split != TRAIN or difficulty not in task.difficulties):
        raise ValueError(f"{where}.difficulty is {reprlib.repr(difficulty)}")
    if whole(entry["start"], f"{where}.start") != start:
        raise ValueError(f"{where}.start is {entry['start']:,}, where {start:,} rows precede it")
    count = whole(entry["count"], f"{where}.count", least=1)
    _check_lengths(entry["question_lengths"], task.max_question, count, f"{where}.question_lengths")
    _check_lengths(entry["answer_lengths"], task.max_answer, count, f"{where}.answer_lengths")
    return Segment(
        module=module,
        difficulty=difficulty,
        start=start,
        count=count,
        checksum=checked(entry["checksum"], str, f"{where}.checksum"),
        question_lengths=tuple(entry["question_lengths"]),
        answer_lengths=tuple(entry["answer_lengths"]),
    )


def _check_lengths(counts: Any, longest: int | None, total: int, where: str) -> None:
    try:
        array("Q", checked(counts, list, where))  # a fast check: integers of at least 0
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{where} must be whole numbers from 0 up: {error}") from error
    if longest is not None and not 2 <= len(counts) <= longest + 1:
        raise ValueError(f"{where} must count texts of at most {longest} characters or words")
    if len(counts) < 2 or counts[0] or not counts[-1] or sum(counts) != total:
        raise ValueError(f"{where} must count {total:,} texts, none of them empty")


def _hash(entry: dict[str, Any], where: str) -> str | None:
    return None if _HASH not in entry else checked(entry[_HASH], str, f"{where}.{_HASH}")
