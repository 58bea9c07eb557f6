"""A `.tar.gz` as a stream: its members in blocks, nothing extracted, damage noticed.

Python's tarfile is made for files that can be sought in. As a stream it copies every byte
several times, which takes as long as unzipping it (0.3 s each for 70 MB), and takes a broken header
for the end of the archive. Here only its reading of a header is used.
"""

import contextlib
import re
import tarfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from queue import Full, Queue
from tarfile import BLOCKSIZE, TarInfo
from typing import IO

DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)
_READ_BYTES = 2**18  # compressed; about four times as much comes out
_BLOCK_BYTES = 2**22
# Bounds on what is kept of an archive besides its content. The published one has about 250 files.
_MAX_HEADER = 2**16  # bytes of the headers that precede one member, which hold names and times
_MAX_NAME = 2**12
_MAX_MEMBERS = 10_000
_MAX_NAMED = 3  # of the files that follow an end mark
_GZIP = b"\x1f\x8b"
# What says something about the member that follows, or about all.
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)
# A record of a pax header: its length, a space, a name, an equals sign, and then the value.
_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")


class TrailingError(tarfile.ReadError):
    """Something follows the mark that ends an archive; what came before it is as it should be."""


def is_archive(path: Path) -> bool:
    """Whether a file begins as a gzip file or a tar archive does, or is too short to tell."""
    with path.open("rb") as file:
        start = file.read(BLOCKSIZE)
    return start.startswith(_GZIP) or b"ustar" in start[257:265] or not start.strip(b"\0")


def unzip(raw: IO[bytes]) -> Iterator[bytes]:
    """The content of a gzip file, or of one that is not zipped, in blocks of at most 4 MB.

    Lengths and checksums are verified by zlib. A file that ends too early raises an EOFError.
    """
    data = raw.read(_READ_BYTES)
    if not data.startswith(_GZIP):
        while data:
            yield data
            data = raw.read(_READ_BYTES)
        return
    unzipper = None
    while data:
        # A gzip file may hold several, one after another, and zeros behind the last.
        unzipper = unzipper or zlib.decompressobj(wbits=31)
        yield unzipper.decompress(data, _BLOCK_BYTES)
        data = unzipper.unconsumed_tail
        if unzipper.eof:
            data, unzipper = unzipper.unused_data, None
        data = data or raw.read(_READ_BYTES)
        if unzipper is None:
            data = data.lstrip(b"\0")
    if unzipper is not None:
        raise EOFError("the end is missing")


def read_archive(blocks: Iterator[bytes]) -> Iterator[tuple[TarInfo, memoryview | None]]:
    """Each member of a tar archive with its content in blocks, and with None after the last.

    A block of zeros ends an archive. If anything else follows it, a TrailingError names that: a
    header overwritten with zeros looks like an end, too.
    """
    stream = _Stream(blocks)
    n_members = 0
    while member := _next_member(stream):
        n_members += 1
        if n_members > _MAX_MEMBERS:
            raise tarfile.ReadError(f"more than {_MAX_MEMBERS:,} files")
        n_left = member.size if member.type in tarfile.REGULAR_TYPES else 0
        n_padding = -n_left % BLOCKSIZE
        while n_left:
            data = stream.some(n_left)
            n_left -= len(data)
            yield member, data
        stream.exactly(n_padding)
        yield member, None
    _refuse_rest(stream)  # which also reads to the end, where gzip keeps its checksum


def _next_member(stream: "_Stream") -> TarInfo | None:
    """The next header, with what headers before it say about it; None for a block of zeros."""
    fields: dict[str, str] = {}
    n_bytes = 0
    while any(header := stream.exactly(BLOCKSIZE)):
        member = TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.type not in _HEADERS:
            member.name = fields.get("path", member.name)
            member.size = int(fields.get("size", member.size))
            if member.size < 0 or len(member.name) > _MAX_NAME:
                raise tarfile.ReadError("a header with an impossible size or name")
            return member
        n_bytes += BLOCKSIZE + member.size
        if not 0 <= member.size <= n_bytes <= _MAX_HEADER:
            raise tarfile.ReadError(f"headers of more than {_MAX_HEADER:,} bytes for one file")
        content = stream.exactly(member.size)
        stream.exactly(-member.size % BLOCKSIZE)
        if member.type != tarfile.XGLTYPE:  # which holds for all, and so names none
            fields |= _fields(member.type, content)
    return None


def _refuse_rest(stream: "_Stream") -> None:
    """Read to the end of the stream, which is all zeros after an archive's end mark."""
    names: list[str] = []
    n_files = n_bytes = 0
    while block := stream.at_most(BLOCKSIZE):
        if not block.strip(b"\0"):
            continue
        n_bytes += len(block)
        try:
            member = TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            continue  # the content of a file whose header is lost, as it may be
        if member.type not in _HEADERS:
            n_files += 1
            names += [member.name] if len(names) < _MAX_NAMED else []
        stream.skip(max(member.size, 0) + -member.size % BLOCKSIZE)
    if names:
        more = f" and {n_files - len(names):,} more" if n_files > len(names) else ""
        raise TrailingError(f"an end mark, and then {', '.join(names)}{more}")
    if n_bytes:
        raise TrailingError(f"an end mark, and then {n_bytes:,} bytes without a file's name")


def why_refused(member: TarInfo) -> str | None:
    """Why a member must not be read, if it is not a plain file or folder of the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "a path that leaves the archive"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        return "a link or device, not a file"
    return None


class _Stream:
    """Blocks of bytes, taken in other sizes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def some(self, most: int) -> memoryview:
        """At least one and at most `most` bytes, without copying."""
        taken = self._take(most)
        if not taken:
            raise EOFError("the end is missing")
        return taken

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        taken = self.at_most(count)
        if len(taken) < count:
            raise EOFError("the end is missing")
        return taken

    def at_most(self, count: int) -> bytes:
        """So many bytes, or fewer at the end."""
        pieces = []
        while count and (piece := self._take(count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Pass over so many bytes, or fewer at the end."""
        while count and (piece := self._take(count)):
            count -= len(piece)

    def _take(self, most: int) -> memoryview:
        """At most so many bytes, and none at the end only."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                break
            self._rest = memoryview(block)
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken


def _fields(kind: bytes, content: bytes) -> dict[str, str]:
    """What a header that precedes a member says about it, as `path` and `size`."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    fields = {}
    start = 0
    while found := _RECORD.match(content, start):
        end = start + int(found[1])
        if not found.end() < end <= len(content):
            raise tarfile.ReadError("a broken header")
        if found[2] in (b"path", b"size"):
            value = content[found.end() : end - 1]
            fields[found[2].decode()] = value.decode("utf-8", "surrogateescape")
        start = end
    if content[start:].strip(b"\0"):
        raise tarfile.ReadError("a broken header")
    return fields


def ahead(items: Iterator[bytes], depth: int = 2) -> Iterator[bytes]:
    """The same blocks, made ahead by a thread.

    Unzipping leaves Python's lock free, so that what is unzipped can be parsed meanwhile.
    """
    queue: Queue[bytes | BaseException | None] = Queue(depth)
    stopped = threading.Event()

    def put(entry: bytes | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(Full):
                queue.put(entry, timeout=0.1)
                return

    def run() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=run, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (entry := queue.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry
    finally:
        stopped.set()
        thread.join()
