"""Files of questions and answers in blocks of bounded size: lines, JSON lines, archives.

A fault is reported with the file and the line. Archives are streamed.
"""

import codecs
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from tarfile import BLOCKSIZE, TarInfo
from typing import IO, Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tp_transformer.data.store import SkippedRows
from tp_transformer.errors import CorpusError

BLOCK_BYTES = 2**22
MAX_LINE = 2**20  # bytes; a file without line breaks must not fill the memory

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
Positions = npt.NDArray[np.int64]


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
    why_excluded: str | None = None
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
        if len(rest) > 2 * MAX_LINE:
            line = file.line + rest.count(b"\n")
            reason = f"a line of more than {MAX_LINE:,} bytes; the rest of the file is not text"
            report.fault(file.name, line, reason, 0)
            return
    if rest:
        reason = "a question without an answer: the number of lines is odd"
        report.fault(file.name, file.line, reason, 1)


def text_batch(
    questions: pa.StringArray,
    answers: pa.StringArray,
    question_lines: Positions,
    answer_lines: Positions,
    **more: pa.StringArray,
) -> pa.RecordBatch:
    """Return questions and answers with the numbers of their lines as a record batch."""
    lines = {"question_line": pa.array(question_lines), "answer_line": pa.array(answer_lines)}
    return pa.record_batch({"question": questions, "answer": answers, **lines, **more})


def cut_out(data: Bytes, starts: Positions, ends: Positions) -> pa.StringArray:
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
        elif len(rest) > MAX_LINE:
            report.fault(file.name, file.line, f"a line of more than {MAX_LINE:,} bytes", 1)
            rest, is_long = b"", True


def in_one_line(error: BaseException) -> str:
    """Return the message of an error of Arrow, which may have several lines, in one line."""
    return " ".join(str(error).split())


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


def why_excluded(member: TarInfo) -> str | None:
    """Return why a member must not be read, if it is not a plain file or folder of the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "a path that leaves the archive"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.sparse:
        return "a link or device, not a file"
    return None
