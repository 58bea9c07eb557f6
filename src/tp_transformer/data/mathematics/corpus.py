"""Reading of the published Mathematics Dataset into a store.

v1.0 has a folder for each split with a file for each module; questions and answers are on
alternating lines. The copy on the Hugging Face hub has a folder for each module with files named by
split, where `train` has no difficulties, `test` is the interpolation split, and texts are printed
bytes with a line break at their end. Faults are reported with file and line or, on request, skipped
and counted.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow as pa

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.modules import (
    EXTRAPOLATE,
    INTERPOLATE,
    SPLITS,
    TRAIN_SPLITS,
)
from tp_transformer.data.mathematics.parsers import (
    Counter,
    JsonLinesParser,
    PairParser,
    Parser,
    TableParser,
)
from tp_transformer.data.mathematics.pieces import Piece, by_difficulty, by_module, check
from tp_transformer.data.mathematics.sources import (
    JSON_LINES,
    OTHER,
    PARQUET,
    TEXT,
    Block,
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
_TEXT_SPLITS: dict[str, tuple[str, str | None]] = {
    name: (TRAIN, name.removeprefix("train-")) if name in TRAIN_SPLITS else (name, None)
    for name in SPLITS
}
# `train-00000-of-00002`, sometimes followed by a checksum, or `0000` in a folder `train`.
_SHARD = re.compile(r"(?:^|-)(?P<shard>\d{4,5})(?:-of-(?P<shards>\d{5}))?(?:-[0-9a-f]{16})?$")

_SPLIT_BEHIND = re.compile(rf"[-_]({'|'.join(_TABLE_SPLITS)})$")


@dataclass(frozen=True)
class Belonging:
    """The part of the dataset in a file; without a module, the rows name their modules."""

    split: str
    module: str | None
    difficulty: str | None
    shard: int | None = None
    n_shards: int | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """The key that two files can only share if they are shards of one file."""
        return self.split, self.module, self.difficulty


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
        for rows in reading.rows(blocks):
            writer.append(*rows.key, rows.questions, rows.answers, checked=True)
            if progress:
                progress(rows.n_read, corpus.n_bytes)
        reading.finish(corpus.path)
        writer.skipped = list(reading.report.entries.values())
    return open_store(out)


@dataclass(frozen=True)
class _Rows:
    """Checked rows for the store, and the number of bytes read so far."""

    key: tuple[str, str, str | None]
    questions: pa.StringArray
    answers: pa.StringArray
    n_read: int


class _Reading:
    """The state of reading: what has been read, and the current file."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._read: dict[tuple[str, str | None, str | None], dict[int | None, str]] = {}
        self._n_shards: dict[tuple[str, str | None, str | None], int] = {}
        self._parser: Parser = Counter(1)
        self._belonging: Belonging | None = None
        self._fault: str | None = None
        self._n_rows = 0

    def rows(self, blocks: Iterator[Block]) -> Iterator[_Rows]:
        """Yield the rows of all files that can be used."""
        file = None
        for block in blocks:
            if block.file is not file:
                if block.damage:
                    self._damage(block, None)
                    continue
                file = block.file
                self._open(file)
            if block.data is not None:
                yield from self._parse(block, partial(self._parser.feed, block.data))
                continue
            if block.damage:
                self._damage(block, self._parser.line)
            elif file.kind != OTHER or self._fault:
                yield from self._parse(block, self._parser.close)
                self._close(file)
            file = None

    def _damage(self, block: Block, line: int | None) -> None:
        if block.is_doubtful:  # earlier data may be wrong too, so this cannot be skipped
            raise CorpusError(f"{block.file.name}: {block.damage}")
        self.report.fault(block.file.name, line, block.damage or "", 0)

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

    def _open(self, file: SourceFile) -> None:
        self._belonging, self._fault = None, file.refused
        if not self._fault and file.kind == OTHER:
            self.report.note(file.name, None, "not a file of questions", 0)
        elif not self._fault:
            self._belonging, self._fault = self._place(file)
        if self._fault:
            # An error, unless faults are skipped; then its rows are counted first.
            if not self.report.skip:
                self.report.fault(file.name, 1, self._fault, 0)
            self._parser = Counter(2 if file.kind == TEXT else 1)
        elif file.kind == TEXT:
            self._parser = PairParser(file.name, self.report)
        elif file.kind == JSON_LINES:
            self._parser = JsonLinesParser(file.name, self.report)
        else:
            self._parser = (
                TableParser(file.name, self.report) if file.kind == PARQUET else Counter(1)
            )

    def _close(self, file: SourceFile) -> None:
        if self._fault:
            rows = self._parser.n_rows if isinstance(self._parser, Counter) else 0
            self.report.fault(file.name, 1, self._fault, rows)
        elif self._parser.line == 1:
            self.report.fault(file.name, 1, "an empty file", 0)

    def _parse(self, block: Block, parse: Callable[[], Piece | None]) -> Iterator[_Rows]:
        name, report, place = block.file.name, self.report, self._belonging
        try:
            piece = parse()
        except pa.ArrowException as error:
            report.fault(name, self._parser.line, f"cannot be read: {in_one_line(error)}", 0)
            return
        if piece is None or place is None:
            return
        good = check(piece, name, report)
        module = place.module
        parts = [(module, good)] if module else by_module(good, place.split, name, report)
        for module, part in parts:
            for difficulty, rows in by_difficulty(part, name, report):
                known = place.difficulty if place.difficulty or place.split != TRAIN else difficulty
                self._n_rows += len(rows.questions)
                key = place.split, module, known
                yield _Rows(key, rows.questions, rows.answers, block.n_read)

    def _place(self, file: SourceFile) -> tuple[Belonging | None, str | None]:
        """Return the part that a file contains, or what is wrong with its name."""
        try:
            found = identify(file.name, file.kind)
        except CorpusError as error:
            return None, str(error)
        read = self._read.setdefault(found.key, {})
        if found.shard in read or (read and None in (found.shard, *read)):
            earlier = read.get(found.shard) or next(iter(read.values()))
            return None, f"the same split and module as {earlier}"
        read[found.shard] = file.name
        if found.n_shards is not None:
            self._n_shards[found.key] = found.n_shards
        return found, None


def identify(name: str, kind: str) -> Belonging:
    """Return the part of the dataset that a file with this name contains."""
    path = PurePosixPath(name)
    if kind == TEXT:
        return _belonging(path.parent.name, path.stem, _TEXT_SPLITS)
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
    place = _belonging(split, module, _TABLE_SPLITS)
    return Belonging(place.split, place.module, place.difficulty, shard, n_shards)


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
