"""Streaming of a `.tar.gz`: its members in blocks, without extraction, with detection of damage.

Python's tarfile is designed for seekable files. As a stream it copies each byte several times,
which takes as long as decompression (0.3 s each for 70 MB), and it treats a damaged header as the
end of the archive. Here only its parser of headers is used.
"""

import re
import tarfile
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from tarfile import BLOCKSIZE, TarInfo
from typing import IO

DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)
_READ_BYTES = 2**18  # compressed; decompressed it is about four times as large
_BLOCK_BYTES = 2**22
# Limits of what is kept of an archive besides its content. The published one has about 250 files.
_MAX_HEADER = 2**16  # bytes of the headers before one member, which contain names and times
_MAX_NAME = 2**12
_MAX_MEMBERS = 10_000
_MAX_NAMED = 3  # names of files after an end marker that a message lists
_GZIP = b"\x1f\x8b"
# Types of headers that describe the next member, or all members.
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)
# A record of a pax header: its length, a space, a name, an equals sign, and the value.
_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")


class TrailingError(tarfile.ReadError):
    """Data follows the end marker of an archive; the data before the marker is valid."""


def is_archive(path: Path) -> bool:
    """Whether a file starts like a gzip file or a tar archive, or is too short to tell."""
    with path.open("rb") as file:
        start = file.read(BLOCKSIZE)
    return start.startswith(_GZIP) or b"ustar" in start[257:265] or not start.strip(b"\0")


def unzip(raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a gzip file, or of an uncompressed file, in blocks of at most 4 MB.

    Lengths and checksums are verified by zlib. A truncated file raises an EOFError.
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
    """Yield each member of a tar archive with its content in blocks; None follows the last block.

    A block of zeros ends an archive. If other data follows it, a TrailingError describes that data,
    because a header overwritten with zeros looks like an end marker.
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
    _refuse_rest(stream)  # also reads to the end, where gzip has its checksum


def _next_member(stream: "_Stream") -> TarInfo | None:
    """Return the next header, combined with the headers that describe it; None for zeros."""
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
        if member.type != tarfile.XGLTYPE:  # applies to all members, so its name is ignored
            fields |= _fields(member.type, content)
    return None


def _refuse_rest(stream: "_Stream") -> None:
    """Read to the end of the stream, which has only zeros after the end marker of an archive."""
    names: list[str] = []
    n_files = n_bytes = 0
    while block := stream.at_most(BLOCKSIZE):
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
        stream.skip(max(member.size, 0) + -member.size % BLOCKSIZE)
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
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        return "a link or device, not a file"
    return None


class _Stream:
    """Blocks of bytes, which can be read in other sizes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def some(self, most: int) -> memoryview:
        """Return at least one and at most `most` bytes, without copying."""
        taken = self._take(most)
        if not taken:
            raise EOFError("the end is missing")
        return taken

    def exactly(self, count: int) -> bytes:
        """Return exactly this number of bytes."""
        taken = self.at_most(count)
        if len(taken) < count:
            raise EOFError("the end is missing")
        return taken

    def at_most(self, count: int) -> bytes:
        """Return this number of bytes, or fewer at the end."""
        pieces = []
        while count and (piece := self._take(count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Skip this number of bytes, or fewer at the end."""
        while count and (piece := self._take(count)):
            count -= len(piece)

    def _take(self, most: int) -> memoryview:
        """Return at most this number of bytes; none only at the end."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                break
            self._rest = memoryview(block)
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken


def _fields(kind: bytes, content: bytes) -> dict[str, str]:
    """Return what a header says about the next member, as `path` and `size`."""
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
    """Yield the same blocks, prepared by a thread.

    Decompression releases the GIL, so that earlier blocks can be parsed at the same time.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        made = deque(thread.submit(next, items, None) for _ in range(depth))
        while (item := made.popleft().result()) is not None:
            made.append(thread.submit(next, items, None))
            yield item
