"""Reading of the published Mathematics Dataset into a store.

v1.0 has a folder for each split with a file for each module; questions and answers are on
alternating lines. The copy on the Hugging Face hub has a folder for each module with files named by
split, where `train` has no difficulties, `test` is the interpolation split, and texts are printed
bytes with a line break at their end. Faults are reported with file and line or, on request, skipped
and counted.
"""

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tp_transformer.data.mathematics.modules import (
    DIFFICULTIES,
    EXTRAPOLATE,
    INTERPOLATE,
    MAX_QUESTION,
    STORE_KEYS,
)
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.readers import (
    DAMAGE,
    Bytes,
    Positions,
    Report,
    SourceFile,
    TrailingError,
    cut_out,
    in_one_line,
    is_archive,
    prefetch,
    read_alternating,
    read_archive,
    read_blocks,
    read_json_lines,
    text_batch,
    unzip,
    why_excluded,
)
from tp_transformer.data.store import TRAIN, Store, open_store, texts_as_bytes
from tp_transformer.data.vocabulary import CHARACTERS, MAX_ANSWER
from tp_transformer.data.writer import ROWS_PER_BATCH, check_replaceable, write_store
from tp_transformer.errors import CorpusError
from tp_transformer.runtime.progress import Update
from tp_transformer.settings import nearest

BLOCK_ROWS = 2**16
_JSON_ROWS = 2**12  # more Python objects at a time would be slower
TEXT, JSON_LINES, PARQUET, OTHER = "v1.0", "JSON lines", "Parquet", "other"
COLUMNS = ("question", "answer", "difficulty", "module")
_KINDS = {".txt": TEXT, ".jsonl": JSON_LINES, ".parquet": PARQUET}
_DESCRIPTION = "README.md"  # of an export or a copy; not worth a note
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
_IS_ALLOWED = np.isin(np.arange(256), np.frombuffer(CHARACTERS.encode(), np.uint8))

Content: TypeAlias = Bytes | pa.RecordBatch
Key = tuple[str, str, str | None]  # the split, module and difficulty of rows in a store


class Corpus:
    """The files of a copy of the dataset; its kind is detected.

    Attributes:
        n_bytes: the size of the copy
        n_read: the number of bytes read so far
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.n_read = Path(path), 0
        self.is_folder = self.path.is_dir()
        if self.is_folder:
            self._files = _list_folder(self.path)
            kinds = {_kind(file.relative_to(self.path)) for file in self._files} - {OTHER}
            if not kinds:
                raise CorpusError(
                    f"{self.path} holds no questions: neither .txt files of v1.0 nor .parquet or "
                    f".jsonl files of the Hugging Face copy"
                )
            self.kind = "folder of " + " and ".join(sorted(kinds))
            self.n_bytes = sum(file.stat().st_size for file in self._files if file.exists())
        elif self.path.is_file():
            if not is_archive(self.path):
                raise CorpusError(f"{self.path} is neither a .tar.gz nor a folder")
            self.kind = "v1.0 archive"
            self.n_bytes = self.path.stat().st_size
        else:
            raise CorpusError(f"there is no archive or folder {self.path}")

    def files(self) -> Generator[tuple[SourceFile, Iterator[Content]], None, None]:
        """Yield the files with their contents in blocks."""
        if not self.is_folder:
            yield from self._archived_files()
            return
        for path in self._files:
            name = path.relative_to(self.path)
            file = SourceFile(name.as_posix(), _kind(name))
            yield file, iter(()) if file.kind == OTHER else self._blocks_of(path, file.kind)

    def _blocks_of(self, path: Path, kind: str) -> Iterator[Content]:
        end = self.n_read + path.stat().st_size
        blocks: Iterator[Content] = _batches_of(path) if kind == PARQUET else read_blocks(path)
        for block in blocks:
            # Parquet is compressed: its batches have more bytes than the file.
            n_bytes = block.nbytes if isinstance(block, pa.RecordBatch) else len(block)
            self.n_read = min(self.n_read + n_bytes, end)
            yield block
        self.n_read = end

    def _archived_files(self) -> Iterator[tuple[SourceFile, Iterator[Content]]]:
        with self.path.open("rb") as raw:
            for member, content in read_archive(prefetch(unzip(raw))):
                self.n_read = raw.tell()
                kind = _kind(PurePosixPath(member.name))
                kind = OTHER if kind == PARQUET else kind  # which needs a file of its own
                file = SourceFile(member.name, kind, why_excluded(member))
                if not member.isdir() or file.why_excluded:
                    yield file, content


def _kind(path: PurePosixPath | Path) -> str:
    is_hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return OTHER if is_hidden else _KINDS.get(path.suffix, OTHER)


def _list_folder(folder: Path) -> list[Path]:
    """Return all files; follow links, which the cache of the Hugging Face hub consists of."""
    files, seen = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()  # a link to a folder above
            continue
        seen.add(real)
        folders.sort()
        files += [Path(parent) / name for name in sorted(names)]
    return files


def _batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
        names = [name for name in COLUMNS if name in file.schema.names]
        if names[:2] != ["question", "answer"]:
            raise pa.ArrowInvalid("it needs the columns `question` and `answer`")
        yield from file.iter_batches(BLOCK_ROWS, columns=names, use_threads=False)


class Part(NamedTuple):
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
    check_replaceable(Path(out))
    corpus = Corpus(source)
    reader = _CorpusReader(Report(skip_errors))
    origin = {"kind": corpus.kind, "name": corpus.path.resolve().name, "bytes": corpus.n_bytes}
    with write_store(out, MATHEMATICS, origin, rows_per_batch) as writer:
        for key, rows in reader.rows(corpus):
            questions, answers = rows.column("question"), rows.column("answer")
            writer.append(*key, questions, answers, checked=True)
            if progress:
                progress(corpus.n_read, corpus.n_bytes)
        writer.skipped = list(reader.report.entries.values())
    return open_store(out)


class _CorpusReader:
    """Reads the rows of a corpus, and remembers which parts of the dataset its files have."""

    def __init__(self, report: Report) -> None:
        self.report = report
        # Names of files by split, module and difficulty, then by shard: two files have the same
        # split, module and difficulty only if they are shards.
        self._names: dict[tuple[str | None, ...], dict[int | None, str]] = {}
        self._n_shards: dict[tuple[str | None, ...], int] = {}
        self._n_rows = 0

    def rows(self, corpus: Corpus) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Yield the rows that can be used, with their split, module and difficulty."""
        current, where = SourceFile(corpus.path.name), "here"
        # Closed explicitly: after an error, the traceback would keep the archive open.
        with closing(corpus.files()) as files:
            try:
                for file, blocks in files:
                    current, where = file, "here"
                    try:
                        yield from self._rows_of(file, blocks)
                    except (OSError, pa.ArrowException) as error:
                        if not corpus.is_folder:
                            raise
                        reason = f"cannot be read: {in_one_line(error)}"
                        self.report.fault(file.name, file.line_in_message, reason, 0)
                    current, where = SourceFile(corpus.path.name), f"after {file.name}"
            except DAMAGE as error:
                self._report_damage(error, current, where)
        self._check_shards()
        if not self._n_rows:
            raise CorpusError(f"{corpus.path} holds no questions that can be used")

    def _report_damage(self, error: BaseException, file: SourceFile, where: str) -> None:
        # A truncated archive is valid up to its end, and one with an end marker up to the marker.
        # Damage may have occurred before it was detected, because the checksum of gzip comes last,
        # so it cannot be skipped.
        is_cut_off = isinstance(error, EOFError)
        message = str(error).removeprefix("zlib error: ")  # of tarfile
        reason = f"the archive is {'cut off' if is_cut_off else 'damaged'} {where} ({message})"
        if not is_cut_off and not isinstance(error, TrailingError):
            raise CorpusError(f"{file.name}: {reason}") from error
        self.report.fault(file.name, file.line_in_message, reason, 0)

    def _check_shards(self) -> None:
        for key, names in self._names.items():
            shards = [shard for shard in names if shard is not None]
            missing = set(range(self._n_shards.get(key, len(shards)))) - set(shards)
            if shards and missing:
                reason = f"part {min(missing)} of this file is missing"
                self.report.fault(next(iter(names.values())), None, reason, 0)

    def _rows_of(
        self, file: SourceFile, blocks: Iterator[Content]
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        if file.kind == OTHER and not file.why_excluded:
            if PurePosixPath(file.name).name != _DESCRIPTION:
                self.report.note(file.name, None, "not a file of questions", 0)
        else:
            try:
                part = self._part(file)
            except CorpusError as error:
                n_rows = _count_rows(file, blocks) if self.report.skip else 0
                self.report.fault(file.name, 1, str(error), n_rows)
                return
            for batch in _PARSERS[file.kind](file, blocks, self.report):
                yield from self._checked(batch, file, part)
            if file.line == 1:
                self.report.fault(file.name, 1, "an empty file", 0)
        for _ in blocks:  # damage may follow what was not read
            pass

    def _checked(
        self, batch: pa.RecordBatch, file: SourceFile, part: Part
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Yield the valid rows of a batch by module and difficulty; report the others."""
        valid = check(batch, file.name, self.report)
        by_module = [(part.module, valid)] if part.module else by_value(valid, "module")
        for module, of_module in by_module:
            if module is None or not MATHEMATICS.has(part.split, module):
                reason = f"{part.split} has no module {module!r}"
                reason = "no module in the path or the row" if module is None else reason
                self._report_rows(file, of_module, reason)
                continue
            for level, rows in by_value(of_module, "difficulty"):
                if level is not None and level not in DIFFICULTIES:
                    self._report_rows(file, rows, f"unknown difficulty {level!r}")
                    continue
                difficulty = part.difficulty or (level if part.split == TRAIN else None)
                self._n_rows += rows.num_rows
                yield (part.split, module, difficulty), rows

    def _report_rows(self, file: SourceFile, rows: pa.RecordBatch, reason: str) -> None:
        if rows.num_rows:
            line = rows.column("question_line")[0].as_py()
            self.report.fault(file.name, line, reason, rows.num_rows)

    def _part(self, file: SourceFile) -> Part:
        """Return the part that a file contains; raise if its name is wrong."""
        if file.why_excluded:
            raise CorpusError(file.why_excluded)
        part = identify(file.name, file.kind)
        names = self._names.setdefault(part[:3], {})
        if part.shard in names or (names and None in (part.shard, *names)):
            earlier = names.get(part.shard) or next(iter(names.values()))
            raise CorpusError(f"the same split and module as {earlier}")
        names[part.shard] = file.name
        if part.n_shards is not None:
            self._n_shards[part[:3]] = part.n_shards
        return part


def _count_rows(file: SourceFile, blocks: Iterable[Content]) -> int:
    """Return the number of rows of a file that is skipped as a whole."""
    for block in blocks:
        if isinstance(block, bytes | memoryview):
            file.line += bytes(block).count(b"\n")
        else:
            file.line += block.num_rows
    return (file.line - 1) // (2 if file.kind == TEXT else 1)


def identify(name: str, kind: str) -> Part:
    """Return the part of the dataset that a file with this name contains."""
    path = PurePosixPath(name)
    if kind == TEXT:
        return _part_of(path.parent.name, path.stem, STORE_KEYS)
    shard = n_shards = None
    split, module = "", ""
    for part in [*path.parts[:-1], *path.stem.split(".")]:
        if match := _SHARD.search(part):
            shard = int(match["shard"])
            n_shards = int(match["shards"]) if match["shards"] else None
            part = part[: match.start()]
        if "__" in part:
            # Also a single name such as `arithmetic__mixed-train`.
            behind = _SPLIT_BEHIND.search(part)
            module = part[: behind.start()] if behind else part
            split = behind[1] if behind else split
        elif part in _TABLE_SPLITS or split not in _TABLE_SPLITS:
            split = part or split
    if not module and split in _TABLE_SPLITS:
        return Part(_TABLE_SPLITS[split][0], None, None, shard, n_shards)
    return _part_of(split, module, _TABLE_SPLITS)._replace(shard=shard, n_shards=n_shards)


def _part_of(folder: str, module: str, splits: dict[str, tuple[str, str | None]]) -> Part:
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
    return Part(split, module, difficulty)


def _parse_json_lines(
    file: SourceFile, blocks: Iterable[Bytes], report: Report
) -> Iterator[pa.RecordBatch]:
    fault = "not a JSON object with the texts `question` and `answer`"
    rows = read_json_lines(file, blocks, report, _json_row, fault)
    while chunk := list(islice(rows, _JSON_ROWS)):
        lines, texts = zip(*chunk, strict=True)
        arrays = [pa.array(column, pa.string()) for column in zip(*texts, strict=True)]
        yield _from_table(pa.RecordBatch.from_arrays(arrays, COLUMNS), np.array(lines))


def _json_row(line: bytes) -> tuple[str | None, ...]:
    row = tuple(map(json.loads(line).get, COLUMNS))
    # Raises for values that are not texts, and for surrogates.
    "".join(text for text in row if text is not None).encode()
    return row


def _parse_tables(
    file: SourceFile, blocks: Iterable[pa.RecordBatch], _: Report
) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        lines = np.arange(file.line, file.line + block.num_rows)
        file.line += block.num_rows
        yield _from_table(block, lines)


_PARSERS: dict[str, Callable[..., Iterator[pa.RecordBatch]]] = {
    TEXT: read_alternating,
    JSON_LINES: _parse_json_lines,
    PARQUET: _parse_tables,
}


def _from_table(table: pa.RecordBatch, lines: Positions) -> pa.RecordBatch:
    columns = {
        name: _as_strings(column)
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }
    question, answer = (unwrap(pc.fill_null(columns.pop(name), "")) for name in COLUMNS[:2])
    if "difficulty" in columns:
        levels = columns["difficulty"]
        columns["difficulty"] = pc.if_else(pc.equal(levels, ""), None, levels)
    return text_batch(question, answer, lines, lines, **columns)


def _as_strings(column: pa.Array) -> pa.StringArray:
    """Return a column as texts, whose bytes are checked later."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary()).view(pa.string())
    return column.cast(pa.string())


def unwrap(texts: pa.StringArray) -> pa.StringArray:
    """Return texts without the wrapping of the Hugging Face copy, which has printed bytes.

    Texts that are not wrapped are unchanged, except for a line break at their end. Escapes within
    texts are not undone, because the 69 characters need none.
    """
    offsets, view = texts_as_bytes(texts)
    if not len(view):
        return texts
    data = np.frombuffer(view, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)

    def at(positions: Positions) -> npt.NDArray[np.uint8]:
        return data[np.clip(positions, 0, len(data) - 1)]

    # Only texts that end in an escaped line break: `b'x'` consists of the 69 characters, so it
    # could be a question.
    quote = at(starts + 1)
    wrapped = (ends - starts >= 5) & (at(starts) == ord("b")) & (at(ends - 1) == quote)
    wrapped &= (quote == ord("'")) | (quote == ord('"'))
    wrapped &= (at(ends - 3) == ord("\\")) & (at(ends - 2) == ord("n"))
    starts, ends = starts + 2 * wrapped, ends - 3 * wrapped
    bare = ~wrapped & (ends > starts) & (at(ends - 1) == ord("\n"))
    return cut_out(view, starts, ends - bare)


def check(batch: pa.RecordBatch, name: str, report: Report) -> pa.RecordBatch:
    """Return the valid rows of the file with this name; report the others, by kind of fault."""
    is_good = np.ones(batch.num_rows, dtype=bool)
    faults: list[tuple[int, int, str, int, str]] = []  # row, line, reason, number of rows, detail
    for noun, longest in (("question", MAX_QUESTION), ("answer", MAX_ANSWER)):
        texts = batch.column(noun)
        offsets, data = texts_as_bytes(texts)
        lengths = offsets[1:] - offsets[:-1]
        is_foreign = np.zeros(len(lengths), dtype=bool)
        if not MATHEMATICS.vocabulary.knows(data, offsets):
            foreign = np.flatnonzero(~_IS_ALLOWED[np.frombuffer(data, np.uint8)])
            is_foreign[np.searchsorted(offsets, foreign, side="right") - 1] = True
        kinds: dict[str, npt.NDArray[np.bool_]] = {
            f"empty {noun}": lengths < 1,
            f"{noun} with a character outside the 69": is_foreign,
            f"{noun} of more than {longest} characters": (lengths > longest) & ~is_foreign,
        }
        for reason, is_wrong in kinds.items():
            if is_wrong.any():
                row = int(is_wrong.argmax())
                line = batch.column(f"{noun}_line")[row].as_py()
                n_rows = int((is_wrong & is_good).sum())
                faults.append((row, line, reason, n_rows, _detail(texts[row])))
        is_good &= ~np.logical_or.reduce(list(kinds.values()))
    for _, line, reason, n_rows, detail in sorted(faults, key=lambda fault: fault[0]):
        report.fault(name, line, reason, n_rows, f"{reason}: {detail}")
    return batch.filter(pa.array(is_good)) if faults else batch


def _detail(text: pa.StringScalar) -> str:
    """Return an excerpt of a text with a fault, with the character or the length that is wrong."""
    content = text.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if not content:
        return "the line is empty"
    excerpt = repr(content if len(content) <= 40 else content[:39] + "…")
    foreign = next((character for character in content if character not in CHARACTERS), None)
    return f"{len(content) if foreign is None else repr(foreign)} in {excerpt}"


def by_value(batch: pa.RecordBatch, name: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of each value of a column, in order of first occurrence."""
    column = batch.column(name) if name in batch.schema.names else pa.nulls(1, pa.string())
    values = pc.unique(column).to_pylist()
    for value in values:
        is_value = pc.is_null(column) if value is None else pc.equal(column, value)
        yield value, batch.filter(is_value) if len(values) > 1 else batch
