"""The sources of a corpus: an archive, its folder, or a copy of the Hugging Face hub.

Each yields its files in blocks of a few megabytes. An archive is streamed and never extracted.
"""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as parquet

from tp_transformer.data.mathematics.archive import (
    DAMAGE,
    TrailingError,
    ahead,
    is_archive,
    read_archive,
    unzip,
    why_refused,
)
from tp_transformer.foundation.errors import CorpusError

BLOCK_BYTES = 2**22
BLOCK_ROWS = 2**16
TEXT, JSON_LINES, PARQUET, OTHER = "v1.0", "JSON lines", "Parquet", "other"
COLUMNS = ("question", "answer", "difficulty", "module")
_KINDS = {".txt": TEXT, ".jsonl": JSON_LINES, ".parquet": PARQUET}
_DESCRIPTIONS = ("README.md", "croissant.json")  # of an export
_DAMAGE = (*DAMAGE, pa.ArrowException)


@dataclass(eq=False)
class SourceFile:
    """A file of a corpus, with its name there; a parser updates `line`."""

    name: str
    kind: str
    refused: str | None = None  # reason why it must not be read
    line: int = 1  # the number of the first line that has not been converted


class DamageError(Exception):
    """The reason why nothing more can be read of a file, or of the archive."""

    def __init__(self, reason: str, *, is_doubtful: bool = False) -> None:
        super().__init__(reason)
        self.is_doubtful = is_doubtful  # whether earlier data may be wrong too


Content: TypeAlias = bytes | memoryview | pa.RecordBatch
# A part of a file. The last part of each file is None, or the damage that ends it.
Block: TypeAlias = tuple[SourceFile, Content | DamageError | None]


class Source:
    """A corpus at a path; its kind is detected.

    Attributes:
        n_bytes: the size of the corpus
        n_read: the number of bytes read so far
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.n_read = Path(path), 0
        if self.path.is_dir():
            self._files = _list_folder(self.path)
            descriptions = [self.path / name for name in _DESCRIPTIONS]
            if all(file in self._files for file in descriptions):
                self._files = [file for file in self._files if file not in descriptions]
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

    def blocks(self) -> Generator[Block, None, None]:
        """Yield the blocks of all files."""
        return self._from_folder() if self.path.is_dir() else self._from_archive()

    def _from_folder(self) -> Generator[Block, None, None]:
        n_before = 0
        for path in self._files:
            name = path.relative_to(self.path).as_posix()
            file = SourceFile(name, _kind(PurePosixPath(name)))
            try:
                if file.kind != OTHER:
                    reader = _read_parquet if file.kind == PARQUET else _read_bytes
                    for n_read, data in reader(path):
                        self.n_read = n_before + n_read
                        yield file, data
                n_before += path.stat().st_size
                yield file, None
            except _DAMAGE as error:
                yield file, DamageError(f"cannot be read: {in_one_line(error)}")

    def _from_archive(self) -> Generator[Block, None, None]:
        # Outside of a member, an error is an error of the archive itself.
        outside = SourceFile(self.path.name, OTHER)
        file, where, current = outside, "here", None
        try:
            with self.path.open("rb") as raw:
                for member, data in read_archive(ahead(unzip(raw))):
                    if member is not current:
                        kind = _kind(PurePosixPath(member.name))
                        file = SourceFile(member.name, kind, why_refused(member))
                        current, where = member, "here"
                    self.n_read = raw.tell()
                    if not member.isdir() or file.refused:
                        yield file, data
                    if data is None:
                        file, where = outside, f"after {member.name}"
        except _DAMAGE as error:
            # A truncated archive is valid up to its end, and one with an end marker up to the
            # marker. Damage may have occurred before it was detected, because the checksum of gzip
            # comes last.
            cut_off = isinstance(error, EOFError)
            reason = f"the archive is {'cut off' if cut_off else 'damaged'} {where} ({error})"
            is_doubtful = not cut_off and not isinstance(error, TrailingError)
            yield file, DamageError(reason, is_doubtful=is_doubtful)


def in_one_line(error: BaseException) -> str:
    """Return the message of an error of Arrow, which may have several lines, in one line."""
    return " ".join(str(error).split())


def _kind(path: PurePosixPath | Path) -> str:
    is_hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return OTHER if is_hidden else _KINDS.get(path.suffix, OTHER)


def _list_folder(folder: Path) -> list[Path]:
    """Return all files; follow links, which the cache of the Hugging Face hub consists of."""
    found, seen = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()  # a link to a folder above
            continue
        seen.add(real)
        folders.sort()
        found += [Path(parent) / name for name in sorted(names)]
    return found


def _read_bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            yield file.tell(), data


def _read_parquet(path: Path) -> Iterator[tuple[int, pa.RecordBatch]]:
    with parquet.ParquetFile(path) as file:
        names = [name for name in COLUMNS if name in file.schema.names]
        if names[:2] != ["question", "answer"]:
            raise pa.ArrowInvalid("it needs the columns `question` and `answer`")
        n_rows, size = max(file.metadata.num_rows, 1), path.stat().st_size
        n_read = 0
        for batch in file.iter_batches(BLOCK_ROWS, columns=names, use_threads=False):
            n_read += batch.num_rows
            yield size * n_read // n_rows, batch
