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
_MAX_HEADER = 2**20  # of the headers that only hold a long name
_GZIP = b"\x1f\x8b"


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
    """Each member of a tar archive with its content in blocks, and with None after the last."""
    stream = _Stream(blocks)
    renamed: dict[str, str] = {}
    while any(header := stream.exactly(BLOCKSIZE)):
        member = TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            if member.size > _MAX_HEADER:
                raise tarfile.ReadError("a header too long to be one")
            content = stream.exactly(member.size)
            stream.exactly(-member.size % BLOCKSIZE)
            if member.type != tarfile.XGLTYPE:  # which holds for all, and so names none
                renamed |= _fields(member.type, content)
            continue
        member.name = renamed.get("path", member.name)
        member.size = int(renamed.get("size", member.size))
        renamed = {}
        n_left = member.size if member.type in tarfile.REGULAR_TYPES else 0
        n_padding = -n_left % BLOCKSIZE
        while n_left:
            data = stream.some(n_left)
            n_left -= len(data)
            yield member, data
        stream.exactly(n_padding)
        yield member, None
    for _ in blocks:
        pass  # to the end, where gzip keeps its checksum


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
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                raise EOFError("the end is missing")
            self._rest = memoryview(block)
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        taken = b""
        while len(taken) < count:
            taken += self.some(count - len(taken))
        return taken


def _fields(kind: bytes, content: bytes) -> dict[str, str]:
    """What a header that precedes a member says about it, as `path` and `size`."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    fields = {}
    while found := re.match(rb"(\d{1,7}) ([^=]+)=", content):
        length = int(found[1])
        if length <= found.end():
            raise tarfile.ReadError("a broken header")
        value = content[found.end() : length - 1]
        fields[found[2].decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        content = content[length:]
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
