"""Where a corpus lies: an archive, its folder, or a copy from the Hugging Face hub.

Each gives its files as blocks of a few megabytes, read ahead in a thread of its own while earlier
blocks are parsed. An archive is streamed and never extracted.
"""

import gzip
import os
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import Full, Queue
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as parquet

from tp_transformer.errors import CorpusError

BLOCK_BYTES = 2**22
BLOCK_ROWS = 2**16
# What tarfile asks of gzip at a time. Of 10 KB, 64 KB, 256 KB and 1 MB, this was the quickest.
_TAR_BYTES = 2**18
TEXT, JSON_LINES, PARQUET, OTHER = "v1.0", "JSON lines", "Parquet", "other"
_KINDS = {".txt": TEXT, ".jsonl": JSON_LINES, ".parquet": PARQUET}
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, pa.ArrowException)

T = TypeVar("T")


@dataclass(frozen=True)
class File:
    """A file of a corpus, by the name it has there."""

    name: str
    kind: str
    refused: str | None = None  # why it must not be read


@dataclass(frozen=True)
class Block:
    """Part of a file, and how many bytes of the source have been read so far."""

    file: File
    data: bytes | pa.RecordBatch | None  # None: the file has ended
    n_read: int
    damage: str | None = None  # why nothing more can be read of the file, or of the archive


class Source:
    """A corpus at a path, of a kind that is found out by looking."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            self._files = _list_folder(self.path)
            kinds = {_kind(file) for file in self._files} - {OTHER}
            if not kinds:
                raise CorpusError(
                    f"{self.path} holds no questions: neither .txt files of v1.0 nor .parquet or "
                    f".jsonl files of the Hugging Face copy"
                )
            self.kind = "folder of " + " and ".join(sorted(kinds))
            self.n_bytes = sum(file.stat().st_size for file in self._files)
        elif self.path.is_file():
            self.kind = "v1.0 archive"
            self.n_bytes = self.path.stat().st_size
        else:
            raise CorpusError(f"there is no archive or folder {self.path}")

    def blocks(self) -> Iterator[Block]:
        """Every file, block by block, each ended by a block without data."""
        raw = self._from_folder() if self.path.is_dir() else self._from_archive()
        return _ahead(raw, depth=4)

    def _from_folder(self) -> Iterator[Block]:
        n_before = 0
        for path in self._files:
            name = path.relative_to(self.path).as_posix()
            file = File(name, _kind(path))
            try:
                if file.kind != OTHER:
                    reader = _read_parquet if file.kind == PARQUET else _read_bytes
                    for n_read, data in reader(path):
                        yield Block(file, data, n_before + n_read)
                n_before += path.stat().st_size
                yield Block(file, None, n_before)
            except _DAMAGE as error:
                yield Block(file, None, n_before, f"cannot be read: {error}")

    def _from_archive(self) -> Iterator[Block]:
        file = File(self.path.name, OTHER)
        raw: IO[bytes] | None = None
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(self.path.open("rb"))
                stream = stack.enter_context(_unzipped(raw))
                archive = stack.enter_context(
                    tarfile.open(
                        fileobj=stream, mode="r|", bufsize=_TAR_BYTES, tarinfo=_StrictHeader
                    )
                )
                for member in archive:
                    file = File(
                        member.name, _kind(PurePosixPath(member.name)), _why_refused(member)
                    )
                    if member.isdir() and not file.refused:
                        continue
                    content = archive.extractfile(member) if member.isfile() else None
                    while content and (data := content.read(BLOCK_BYTES)):
                        yield Block(file, data, raw.tell())
                    yield Block(file, None, raw.tell())
                file = File(self.path.name, OTHER)
                while stream.read(BLOCK_BYTES):
                    pass  # to the end, where gzip keeps its checksum
        except _DAMAGE as error:
            n_read = raw.tell() if raw is not None and not raw.closed else 0
            yield Block(file, None, n_read, f"the archive is damaged or cut off here ({error})")


class _StrictHeader(tarfile.TarInfo):
    """A header that must be right; tarfile itself takes a broken one for the archive's end."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> "_StrictHeader":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the zeros that end every archive
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[return-value]


def _why_refused(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "a path that leaves the archive"
    if not (member.isfile() or member.isdir()):
        return "a link or device, not a file"
    return None


def _kind(path: PurePosixPath | Path) -> str:
    return OTHER if path.name.startswith(".") else _KINDS.get(path.suffix, OTHER)


def _list_folder(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent) / name for name in sorted(names)]
    return found


def _read_bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            yield file.tell(), data


def _read_parquet(path: Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    with parquet.ParquetFile(path) as file:
        names = [name for name in ("question", "answer", "difficulty") if name in file.schema.names]
        if names[:2] != ["question", "answer"]:
            raise pa.ArrowInvalid("it needs the columns `question` and `answer`")
        n_rows, size = max(file.metadata.num_rows, 1), path.stat().st_size
        n_read = 0
        for batch in file.iter_batches(BLOCK_ROWS, columns=names, use_threads=False):
            n_read += batch.num_rows
            yield size * n_read // n_rows, batch


def _ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, of which up to `depth` are made ahead by a thread.

    Unzipping leaves Python's lock free, so that it and the parsing run side by side.
    """
    queue: Queue[tuple[str, Any]] = Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[str, Any]) -> None:
        while not stopped.is_set():
            try:
                return queue.put(entry, timeout=0.1)
            except Full:
                continue

    def run() -> None:
        try:
            for item in items:
                put(("item", item))
                if stopped.is_set():
                    return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = threading.Thread(target=run, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (entry := queue.get())[0] == "item":
            yield entry[1]
        if entry[0] == "error":
            raise entry[1]
    finally:
        stopped.set()
        thread.join()
