"""Files of questions and answers: text of alternating lines, JSON lines, CSV, Parquet, archives.

Files are read in blocks of a few megabytes and archives are streamed, so that memory is bounded. A
fault is reported with the file and the line; rows of Parquet are numbered from 1.
"""

import codecs
import csv
import json
import re
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, fields
from itertools import chain
from pathlib import Path, PurePosixPath
from tarfile import BLOCKSIZE, TarInfo
from typing import IO, Any, NamedTuple, TextIO, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as parquet

from tp_transformer.data.pair_options import Columns
from tp_transformer.data.store import SkippedRows
from tp_transformer.errors import CorpusError, SettingsError
from tp_transformer.settings import nearest

BLOCK_BYTES = 2**22
BLOCK_ROWS = 2**14
_MAX_LINE = 2**20  # bytes; a file without line breaks must not fill the memory
PAIR_FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Bytes that are not UTF-8 become surrogates, which no valid text contains; they are reported as
# faults of their row.
_ERRORS = "surrogateescape"
# Numbers are texts as they are written: 1.50 is not 1.5.
_READ_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=lambda _: None)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")

_GZIP = b"\x1f\x8b"
_READ_BYTES = 2**18  # compressed; decompressed it is about four times as large
# Limits of what is kept of an archive besides its content. The published one has about 250 files.
# `tarfile` needs memory proportional to the square of the size of a crafted header.
_MAX_HEADER = 2**13  # bytes of the headers before one member, which contain names and times
_MAX_NAME = 2**12
_MAX_MEMBERS = 10_000
_MAX_NAMED = 3  # names of files after an end marker that a message lists
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)  # describe other members
DAMAGE = (
    *(OSError, EOFError, ValueError, RecursionError),
    *(zlib.error, tarfile.TarError, pa.ArrowException),
)

T = TypeVar("T")
Bytes: TypeAlias = bytes | memoryview
Places = npt.NDArray[np.int64]


@dataclass
class Report:
    """Handles faults: the first one is an error, or each is skipped and counted."""

    skip: bool
    entries: dict[tuple[str, str], SkippedRows] = field(default_factory=dict)

    def fault(self, where: str, line: int | None, reason: str, rows: int, detail: str = "") -> None:
        """Raise for a fault, or record it and the number of `rows` of the file that it affects."""
        if not self.skip:
            at = where if line is None else f"{where}, line {line:,}"
            raise CorpusError(f"{at}: {detail or reason}")
        self.note(where, line, reason, rows)

    def note(self, where: str, line: int | None, reason: str, rows: int) -> None:
        """Record rows that were skipped, with the reason."""
        entry: SkippedRows = {"file": where, "reason": reason, "rows": 0, "first_line": line}
        self.entries.setdefault((where, reason), entry)["rows"] += rows


@dataclass(eq=False)
class SourceFile:
    """A file that is read, with its name in messages; a reader updates `line`."""

    name: str
    kind: str = ""
    refused: str | None = None  # reason why it must not be read
    line: int = 1  # the number of the first line that has not been converted

    @property
    def line_in_message(self) -> int | None:
        """The line at which a fault is reported; None if no line has been converted."""
        return self.line if self.line > 1 else None


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, without the mark of UTF-8 that some programs begin texts with."""
    with path.open("rb") as file:
        block = file.read(BLOCK_BYTES).removeprefix(codecs.BOM_UTF8)
        while block:
            yield block
            block = file.read(BLOCK_BYTES)


def read_alternating(
    file: SourceFile, blocks: Iterable[Bytes], report: Report
) -> Iterator[pa.RecordBatch]:
    """Yield questions and answers on alternating lines, with the numbers of their lines.

    Lines may end as on Windows, and the last line may lack a line break. Line breaks and texts are
    processed for a whole block at once.
    """
    rest = b""
    for block in chain(blocks, [None]):
        if block is None:
            block = b"" if not rest or rest.endswith(b"\n") else b"\n"
        data = rest + block
        bytes_ = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(bytes_ == ord("\n"))
        ends = ends[: len(ends) // 2 * 2]
        rest = data[int(ends[-1]) + 1 :] if len(ends) else data
        if len(ends):
            starts = np.concatenate([[0], ends[:-1] + 1])
            if b"\r" in data:
                ends = ends - ((bytes_[ends - 1] == ord("\r")) & (ends > starts))
            questions, answers = (cut_out(data, starts[i::2], ends[i::2]) for i in (0, 1))
            lines = np.arange(file.line, file.line + len(ends))
            file.line += len(ends)
            yield text_batch(questions, answers, lines[0::2], lines[1::2])
        if len(rest) > 2 * _MAX_LINE:
            line = file.line + rest.count(b"\n")
            reason = f"a line of more than {_MAX_LINE:,} bytes; the rest of the file is not text"
            report.fault(file.name, line, reason, 0)
            return
    if rest:
        reason = "a question without an answer: the number of lines is odd"
        report.fault(file.name, file.line, reason, 1)


def text_batch(
    questions: pa.StringArray,
    answers: pa.StringArray,
    question_lines: Places,
    answer_lines: Places,
    **more: pa.StringArray,
) -> pa.RecordBatch:
    """Return questions and answers with the numbers of their lines as a record batch."""
    lines = {"question_line": pa.array(question_lines), "answer_line": pa.array(answer_lines)}
    return pa.record_batch({"question": questions, "answer": answers, **lines, **more})


def cut_out(data: Bytes, starts: Places, ends: Places) -> pa.StringArray:
    """Return the texts `data[starts[i]:ends[i]]`, which are in order and do not overlap.

    Texts in Arrow are contiguous, so the bytes between two texts become a text too, which is then
    not selected: about 30 ns for each text and one copy of its bytes.
    """
    if not len(starts):
        return pa.array([], pa.string())
    offsets = np.stack([starts, ends], axis=1).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    return with_gaps.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))


def read_json_lines(
    file: SourceFile,
    blocks: Iterable[Bytes],
    report: Report,
    convert: Callable[[bytes], T | None],
    fault: str,
) -> Iterator[tuple[int, T]]:
    """Yield the number and the value of each line; `convert` raises or returns None to skip one."""
    rest, is_long = b"", False  # the start of the next line; whether that line is too long
    for block in chain(blocks, [None]):
        if block is None and not rest:
            return
        *lines, rest = (rest + (b"\n" if block is None else block)).split(b"\n")
        if is_long and lines:
            del lines[0]
            file.line, is_long = file.line + 1, False
        for number, line in enumerate(lines, file.line):
            try:
                value = convert(line)
            except (ValueError, TypeError, AttributeError, RecursionError):
                report.fault(file.name, number, fault, 1)
                continue
            if value is not None:
                yield number, value
        file.line += len(lines)
        if is_long:
            rest = b""
        elif len(rest) > _MAX_LINE:
            report.fault(file.name, file.line, f"a line of more than {_MAX_LINE:,} bytes", 1)
            rest, is_long = b"", True


# --- archives


class TrailingError(tarfile.ReadError):
    """Data follows the end marker of an archive; the data before the marker is valid."""


def is_archive(path: Path) -> bool:
    """Whether a file starts like a gzip file or a tar archive, or is too short to tell."""
    with path.open("rb") as file:
        start = file.read(BLOCKSIZE)
    return start.startswith(_GZIP) or b"ustar" in start[257:265] or not start.strip(b"\0")


def unzip(raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a gzip file, or of an uncompressed file, in blocks of at most 4 MB.

    Lengths and checksums are verified by zlib. Python's gzip would lose the block before damage.
    """
    data = raw.read(_READ_BYTES)
    if not data.startswith(_GZIP):
        while data:
            yield data
            data = raw.read(_READ_BYTES)
        return
    unzipper = None
    while data:
        # A gzip file may consist of several members, followed by zeros.
        unzipper = unzipper or zlib.decompressobj(wbits=31)
        yield unzipper.decompress(data, BLOCK_BYTES)
        data = unzipper.unconsumed_tail
        if unzipper.eof:
            data, unzipper = unzipper.unused_data, None
        data = data or raw.read(_READ_BYTES)
        if unzipper is None:
            data = data.lstrip(b"\0")
    if unzipper is not None:
        raise EOFError("the end is missing")


def prefetch(blocks: Iterator[bytes], depth: int = 2) -> Iterator[bytes]:
    """Yield the same blocks, prepared by a thread, because decompression releases the GIL."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        prepared = deque(thread.submit(next, blocks, None) for _ in range(depth))
        while (block := prepared.popleft().result()) is not None:
            prepared.append(thread.submit(next, blocks, None))
            yield block


class _Stream:
    """Blocks of bytes as a file that is read forwards, by `tarfile` for headers only."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")
        self._position = self._header_start = 0

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._position

    def read(self, count: int) -> bytes:
        """Return part of a header, exactly this number of bytes."""
        if count < 0 or self._position + count - self._header_start > _MAX_HEADER:
            raise tarfile.ReadError(f"headers of more than {_MAX_HEADER:,} bytes for one file")
        return b"".join(self.content(count))

    def content(self, count: int, *, may_end: bool = False) -> Iterator[memoryview]:
        """Yield this number of bytes, without copying; raise if the end is missing."""
        while count > 0:
            while not self._rest and (block := next(self._blocks, None)) is not None:
                self._rest = memoryview(block)
            data, self._rest = self._rest[:count], self._rest[count:]
            if not data:
                if may_end:
                    return
                raise EOFError("the end is missing")
            self._position += len(data)
            count -= len(data)
            yield data

    def start_header(self, position: int) -> None:
        """Skip to the position of a header."""
        for _ in self.content(position - self._position):
            pass
        self._header_start = self._position


def read_archive(blocks: Iterator[bytes]) -> Iterator[tuple[TarInfo, Iterator[memoryview]]]:
    """Yield each member of a tar archive with its content in blocks.

    A block of zeros ends an archive. If other data follows it, a TrailingError describes that data,
    because a header overwritten with zeros looks like an end marker.
    """
    stream = _Stream(blocks)
    archive = tarfile.TarFile(fileobj=cast(Any, stream), encoding="utf-8")
    member, n_members = archive.next(), 0  # which `TarFile` has read
    while member is not None:
        n_members += 1
        if n_members > _MAX_MEMBERS:
            raise tarfile.ReadError(f"more than {_MAX_MEMBERS:,} files")
        if member.size < 0 or len(member.name) > _MAX_NAME:
            raise tarfile.ReadError("a header with an impossible size or name")
        end = archive.offset
        yield member, stream.content(min(member.size, end - member.offset_data))
        stream.start_header(end)
        archive.pax_headers = {}  # those of all members, which would accumulate
        try:  # `TarFile.next` would take a damaged header for the end
            member = TarInfo.fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            member = None
    _check_rest(stream)  # also reads to the end, where gzip has its checksum


def _check_rest(stream: _Stream) -> None:
    """Read to the end of the stream, which has only zeros after the end marker of an archive."""
    names: list[str] = []
    n_files = n_bytes = 0
    while block := b"".join(stream.content(BLOCKSIZE, may_end=True)):
        if not block.strip(b"\0"):
            continue
        n_bytes += len(block)
        try:
            member = TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            continue  # possibly the content of a file whose header is lost
        if member.type not in _HEADERS:
            n_files += 1
            names += [member.name] if len(names) < _MAX_NAMED else []
        for _ in stream.content(max(member.size, 0) + -member.size % BLOCKSIZE, may_end=True):
            pass
    if names:
        more = f" and {n_files - len(names):,} more" if n_files > len(names) else ""
        raise TrailingError(f"an end marker, followed by {', '.join(names)}{more}")
    if n_bytes:
        raise TrailingError(f"an end marker, followed by {n_bytes:,} bytes without a file's name")


def why_refused(member: TarInfo) -> str | None:
    """Return why a member must not be read, if it is not a plain file or folder of the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "a path that leaves the archive"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.sparse:
        return "a link or device, not a file"
    return None


# --- pairs of your own


class RawRow(NamedTuple):
    """A row of a file; a value that is missing or not a text is None."""

    line: int
    question: str | None
    answer: str | None
    split: str | None
    group: str | None


class PairFile:
    """A file of pairs.

    Attributes:
        name: the name of the file in messages
        has_splits: whether its rows name their splits
        has_groups: whether its rows name their groups
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path, self.name, self._columns = path, path.name, columns
        self._suffix = path.suffix.lower()
        try:
            names = self._column_names()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise CorpusError(f"{self.name}: cannot be read: {in_one_line(error)}") from error
        if any("\udc80" <= character <= "\udcff" for character in "".join(names or ())):
            raise CorpusError(f"{self.name} is not a text in UTF-8")
        self._check_columns(names)
        self.has_splits = names is not None and columns.split in names
        self.has_groups = names is not None and columns.group in names

    def _column_names(self) -> list[str] | None:
        """Return the names of the columns; None if the format has none."""
        if self._suffix == ".txt":
            return None
        if self._suffix == ".parquet":
            with parquet.ParquetFile(self.path) as file:
                return list(file.schema_arrow.names)
        with self._open() as text:
            if self._suffix in _DELIMITERS:
                return next(csv.reader(text, delimiter=_DELIMITERS[self._suffix]), [])
            line = next(filter(str.strip, iter(lambda: text.readline(_MAX_LINE), "")), "{}")
            if not isinstance(first := json.loads(line), dict):
                raise ValueError("its first line is not a JSON object")
            return list(first)

    def _check_columns(self, names: list[str] | None) -> None:
        """Raise if a required column is absent, or if there are two of the same name."""
        for column in fields(Columns):
            name, noun = getattr(self._columns, column.name), column.name
            if names is None:
                if name != column.default:
                    raise SettingsError(f"{self.name} is text without columns such as {name!r}")
                continue
            is_required = noun in ("question", "answer") or name != column.default
            if is_required and name not in names:
                there = ", ".join(map(repr, names)) or "none"
                raise CorpusError(
                    f"{self.name} has no column {name!r}{nearest(name, names)}; name the column of "
                    f"{noun}s with --{noun}-column: the columns are {there}"
                )
            if names.count(name) > 1:
                raise CorpusError(f"{self.name} has {names.count(name)} columns {name!r}")

    @property
    def stem(self) -> str:
        """The name of the file without its suffix and the number of a shard."""
        return _SHARD.sub("", self.path.stem)

    def rows(self, report: Report) -> Iterator[RawRow]:
        """Yield the rows; report those that cannot be read."""
        readers = {".parquet": self._parquet_rows, ".txt": self._text_rows}
        readers |= dict.fromkeys(_DELIMITERS, self._table_rows)
        try:
            yield from readers.get(self._suffix, self._json_rows)(report)
        except (OSError, pa.ArrowException) as error:
            report.fault(self.name, None, f"cannot be read: {in_one_line(error)}", 0)

    def _open(self) -> TextIO:
        return self.path.open(encoding="utf-8-sig", errors=_ERRORS, newline="")

    def _row(self, line: int, values: Mapping[str, Any]) -> RawRow:
        return RawRow(line, *(_as_text(values.get(name)) for name in astuple(self._columns)))

    def _text_rows(self, report: Report) -> Iterator[RawRow]:
        file = SourceFile(self.name)
        for batch in read_alternating(file, read_blocks(self.path), report):
            texts = (_as_texts(batch.column(name)) for name in ("question", "answer"))
            lines = batch.column("question_line").to_pylist()
            for line, question, answer in zip(lines, *texts, strict=True):
                yield RawRow(line, question, answer, None, None)

    def _json_rows(self, report: Report) -> Iterator[RawRow]:
        expected = (self._columns.split, self.has_splits), (self._columns.group, self.has_groups)
        absent = [name for name, is_there in expected if not is_there]
        file, blocks, fault = SourceFile(self.name), read_blocks(self.path), "not a JSON object"
        for line, values in read_json_lines(file, blocks, report, _json_object, fault):
            if late := next((name for name in absent if name in values), None):
                reason = "a column that the first row lacks"
                report.fault(self.name, line, reason, 1, f"{reason}: {late!r}")
            else:
                yield self._row(line, values)

    def _table_rows(self, report: Report) -> Iterator[RawRow]:
        with self._open() as file:
            reader = csv.reader(file, delimiter=_DELIMITERS[self._suffix], strict=True)
            header = next(reader)
            line = reader.line_num + 1
            while True:
                try:
                    cells = next(reader, None)
                except csv.Error as error:
                    report.fault(self.name, line, f"not a row of a table: {error}", 1)
                    cells = []
                if cells is None:
                    return
                if cells and len(cells) != len(header):
                    reason = "a row with another number of columns than the header"
                    detail = f"{reason}: {len(cells)}, not {len(header)}"
                    report.fault(self.name, line, reason, 1, detail)
                elif cells:  # blank lines are ignored
                    yield self._row(line, dict(zip(header, cells, strict=True)))
                line = reader.line_num + 1

    def _parquet_rows(self, report: Report) -> Iterator[RawRow]:
        with parquet.ParquetFile(self.path) as file:
            names = [name for name in astuple(self._columns) if name in file.schema_arrow.names]
            line = 1
            for batch in file.iter_batches(BLOCK_ROWS, columns=names, use_threads=False):
                columns = map(_as_texts, batch.columns)
                for number, values in enumerate(zip(*columns, strict=True), line):
                    yield self._row(number, dict(zip(batch.schema.names, values, strict=True)))
                line += batch.num_rows


def _json_object(line: bytes) -> dict[str, Any] | None:
    text = line.decode("utf-8", _ERRORS)
    if not text.strip():
        return None  # as in tables
    values = _READ_JSON.decode(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return values


def _as_text(value: Any) -> str | None:
    """Return a value of JSON as text; null, lists and objects are None."""
    if isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _as_texts(column: pa.Array) -> list[str | None]:
    """Return the values of a column as texts; null and nested values are None."""
    if pa.types.is_nested(column.type):
        return [None] * len(column)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.string())
    # Decoded here, so that bytes that are not UTF-8 are a fault of their row.
    values = column.cast(pa.binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", _ERRORS) for value in values]


def pair_files(source: str | Path, columns: Columns) -> list[PairFile]:
    """Return the file of pairs at a path, or those of a folder, sorted by name."""
    path = Path(source)
    formats = ", ".join(PAIR_FORMATS)
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if _is_pairs(file) and file.name[0] != ".")
        if not paths:
            raise CorpusError(f"{path} has no file of pairs; the formats are {formats}")
        return [PairFile(file, columns) for file in paths]
    if not path.is_file():
        raise CorpusError(f"there is no file or folder {path}")
    if not _is_pairs(path):
        raise CorpusError(f"{path} is not a file of pairs; the formats are {formats}")
    return [PairFile(path, columns)]


def looks_like_pairs(source: str | Path) -> bool:
    """Whether a path has files of pairs rather than a copy of the Mathematics Dataset."""
    path = Path(source)
    if path.is_file():
        return _is_pairs(path)
    if not path.is_dir():
        return False
    names = [file.name for file in path.iterdir() if _is_pairs(file)]
    return bool(names) and not any("__" in name for name in names)


def _is_pairs(path: Path) -> bool:
    return path.suffix.lower() in PAIR_FORMATS


def in_one_line(error: BaseException) -> str:
    """Return the message of an error of Arrow, which may have several lines, in one line."""
    return " ".join(str(error).split())
