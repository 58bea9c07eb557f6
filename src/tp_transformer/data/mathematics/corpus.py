"""Reading of the published Mathematics Dataset into a store.

v1.0 has a folder for each split with a file for each module; questions and answers are on
alternating lines. The copy on the Hugging Face hub has a folder for each module with files named by
split, where `train` has no difficulties, `test` is the interpolation split, and texts are printed
bytes with a line break at their end. Faults are reported with file and line or, on request, skipped
and counted.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pyarrow as pa

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.modules import (
    DIFFICULTIES,
    EXTRAPOLATE,
    INTERPOLATE,
    STORE_PLACES,
)
from tp_transformer.data.mathematics.parsers import PARSERS, by_value, check, count_rows
from tp_transformer.data.mathematics.sources import (
    OTHER,
    TEXT,
    Block,
    Content,
    DamageError,
    Source,
    SourceFile,
    in_one_line,
)
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import TRAIN, Store, open_store
from tp_transformer.data.writer import ROWS_PER_BATCH, refuse_other, write_store
from tp_transformer.foundation.errors import CorpusError
from tp_transformer.foundation.progress import Update
from tp_transformer.foundation.settings import nearest

# The splits of the Hugging Face copy, and those in exports of this package, as the store's split
# and difficulty.
_TABLE_SPLITS: dict[str, tuple[str, str | None]] = {
    "train": (TRAIN, None),
    "test": (INTERPOLATE, None),
    INTERPOLATE: (INTERPOLATE, None),
    EXTRAPOLATE: (EXTRAPOLATE, None),
}
# `train-00000-of-00002`, sometimes followed by a checksum, or `0000` in a folder `train`.
_SHARD = re.compile(r"(?:^|-)(?P<shard>\d{4,5})(?:-of-(?P<shards>\d{5}))?(?:-[0-9a-f]{16})?$")

_SPLIT_BEHIND = re.compile(rf"[-_]({'|'.join(_TABLE_SPLITS)})$")


class Belonging(NamedTuple):
    """The part of the dataset in a file; without a module, the rows name their modules."""

    split: str
    module: str | None
    difficulty: str | None
    shard: int | None = None
    n_shards: int | None = None


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    skip_errors: bool = False,
    progress: Update | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> Store:
    """Read a corpus into the store `out`; skipped rows are listed in `skipped` of the store."""
    refuse_other(Path(out))
    corpus = Source(source)
    reading = _Reading(Report(skip_errors))
    origin = {"kind": corpus.kind, "name": corpus.path.resolve().name, "bytes": corpus.n_bytes}
    # Closed explicitly: after an error, the traceback would keep the archive open.
    with (
        write_store(out, MATHEMATICS, origin, rows_per_batch) as writer,
        closing(corpus.blocks()) as blocks,
    ):
        for file, own in groupby(blocks, itemgetter(0)):
            for key, rows in reading.rows(file, own):
                questions, answers = rows.column("question"), rows.column("answer")
                writer.append(*key, questions, answers, checked=True)
                if progress:
                    progress(corpus.n_read, corpus.n_bytes)
        reading.finish(corpus.path)
        writer.skipped = list(reading.report.entries.values())
    return open_store(out)


Key = tuple[str, str, str | None]  # the split, module and difficulty of rows in a store


class _Reading:
    """The state of reading: the files that have been read, and their number of rows."""

    def __init__(self, report: Report) -> None:
        self.report = report
        # By split, module and difficulty, which two files share only if they are shards of one.
        self._read: dict[tuple[str | None, ...], dict[int | None, str]] = {}
        self._n_shards: dict[tuple[str | None, ...], int] = {}
        self._n_rows = 0

    def rows(
        self, file: SourceFile, blocks: Iterator[Block]
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Yield the rows of a file that can be used, with their places in the store."""
        first = next(blocks)
        if isinstance(first[1], DamageError):
            self._damage(file, first[1], None)
            return
        contents = _contents(chain([first], blocks))
        try:
            yield from self._usable_rows(file, contents)
            for _ in contents:  # damage may follow what was not read
                pass
        except DamageError as damage:
            self._damage(file, damage, file.line)

    def _damage(self, file: SourceFile, damage: DamageError, line: int | None) -> None:
        if damage.is_doubtful:  # earlier data may be wrong too, so this cannot be skipped
            raise CorpusError(f"{file.name}: {damage}")
        self.report.fault(file.name, line, str(damage), 0)

    def finish(self, path: Path) -> None:
        """Raise if parts of a file are missing, or if there are no questions."""
        for key, shards in self._read.items():
            numbers = [shard for shard in shards if shard is not None]
            missing = set(range(self._n_shards.get(key, len(numbers)))) - set(numbers)
            if numbers and missing:
                first = next(iter(shards.values()))
                reason = f"part {min(missing)} of this file is missing"
                self.report.fault(first, None, reason, 0)
        if not self._n_rows:
            raise CorpusError(f"{path} holds no questions that can be used")

    def _usable_rows(
        self, file: SourceFile, contents: Iterator[Content]
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        if file.kind == OTHER and not file.refused:
            self.report.note(file.name, None, "not a file of questions", 0)
            count_rows(file, contents)
            return
        try:
            place = self._place(file)
        except CorpusError as error:
            n_rows = count_rows(file, contents) if self.report.skip else 0
            self.report.fault(file.name, 1, str(error), n_rows)
            return
        try:
            for batch in PARSERS[file.kind](file, contents, self.report):
                yield from self._checked(batch, file, place)
        except pa.ArrowException as error:
            reason = f"cannot be read: {in_one_line(error)}"
            self.report.fault(file.name, file.line, reason, 0)
        if file.line == 1:
            self.report.fault(file.name, 1, "an empty file", 0)

    def _checked(
        self, batch: pa.RecordBatch, file: SourceFile, place: Belonging
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Yield the valid rows of a batch by module and difficulty; report the others."""
        good = check(batch, file.name, self.report)
        for module, part in [(place.module, good)] if place.module else by_value(good, "module"):
            if module is None or not MATHEMATICS.has(place.split, module):
                reason = f"{place.split} has no module {module!r}"
                self._fault(
                    file, part, "no module in the path or the row" if module is None else reason
                )
                continue
            for level, rows in by_value(part, "difficulty"):
                if level is not None and level not in DIFFICULTIES:
                    self._fault(file, rows, f"unknown difficulty {level!r}")
                    continue
                difficulty = place.difficulty or (level if place.split == TRAIN else None)
                self._n_rows += rows.num_rows
                yield (place.split, module, difficulty), rows

    def _fault(self, file: SourceFile, rows: pa.RecordBatch, reason: str) -> None:
        if rows.num_rows:
            line = rows.column("question_line")[0].as_py()
            self.report.fault(file.name, line, reason, rows.num_rows)

    def _place(self, file: SourceFile) -> Belonging:
        """Return the part that a file contains; raise if its name is wrong."""
        if file.refused:
            raise CorpusError(file.refused)
        found = identify(file.name, file.kind)
        key = found[:3]
        read = self._read.setdefault(key, {})
        if found.shard in read or (read and None in (found.shard, *read)):
            earlier = read.get(found.shard) or next(iter(read.values()))
            raise CorpusError(f"the same split and module as {earlier}")
        read[found.shard] = file.name
        if found.n_shards is not None:
            self._n_shards[key] = found.n_shards
        return found


def _contents(blocks: Iterator[Block]) -> Iterator[Content]:
    """Yield the contents of the blocks of a file; raise the damage that ends it."""
    for _, content in blocks:
        if isinstance(content, DamageError):
            raise content
        if content is not None:
            yield content


def identify(name: str, kind: str) -> Belonging:
    """Return the part of the dataset that a file with this name contains."""
    path = PurePosixPath(name)
    if kind == TEXT:
        return _belonging(path.parent.name, path.stem, STORE_PLACES)
    shard = n_shards = None
    split, module = "", ""
    for part in [*path.parts[:-1], *path.stem.split(".")]:
        if found := _SHARD.search(part):
            shard = int(found["shard"])
            n_shards = int(found["shards"]) if found["shards"] else None
            part = part[: found.start()]
        if "__" in part:
            # Also a single name such as `arithmetic__mixed-train`.
            behind = _SPLIT_BEHIND.search(part)
            module = part[: behind.start()] if behind else part
            split = behind[1] if behind else split
        elif part in _TABLE_SPLITS or split not in _TABLE_SPLITS:
            split = part or split
    if not module and split in _TABLE_SPLITS:
        return Belonging(_TABLE_SPLITS[split][0], None, None, shard, n_shards)
    return _belonging(split, module, _TABLE_SPLITS)._replace(shard=shard, n_shards=n_shards)


def _belonging(folder: str, module: str, splits: dict[str, tuple[str, str | None]]) -> Belonging:
    if not folder:
        raise CorpusError(f"its path names no split; the splits are {', '.join(splits)}")
    if folder not in splits:
        raise CorpusError(
            f"unknown split {folder!r}{nearest(folder, splits)}; the splits are {', '.join(splits)}"
        )
    split, difficulty = splits[folder]
    if not MATHEMATICS.has(split, module):
        near = nearest(module, MATHEMATICS.splits[split])
        raise CorpusError(f"{folder} has no module {module!r}{near}")
    return Belonging(split, module, difficulty)
