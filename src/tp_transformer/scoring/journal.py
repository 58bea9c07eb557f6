"""What an evaluation has found so far, kept beside its result until that is complete.

Every rank writes files of its own, so saving needs no word with the others. An evaluation that goes
on reads whatever files are there for the same model and questions, from however many ranks, and
asks only what is left: a verdict belongs to a question, not to a batch. The names hold the
evaluation's key, so one that is to write the same result leaves another's files alone.
"""

import glob
import hashlib
import json
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tp_transformer.foundation import atomic
from tp_transformer.scoring.verdict import Bools, Floats

SECONDS_BETWEEN_SAVES = 30.0

OPEN, WRONG, RIGHT, UNSURE = range(4)  # what is known of a question; unsure: float64 must decide
Known = npt.NDArray[np.uint8]


class Journal:
    """The verdicts so far, by question, saved now and then."""

    def __init__(self, out: Path, rank: int, key: str, n: int) -> None:
        self.known: Known = np.zeros(n, np.uint8)
        self.loss: Floats = np.zeros(n)
        self._key = key
        self._out = out
        self._file = _beside(out, key, f"rank-{rank}")
        self._saved = time.monotonic()

    @property
    def done(self) -> Bools:
        """Which questions have been asked."""
        return self.known != OPEN

    def read(self) -> None:
        """Take over what is there already, from this rank or others."""
        for file in self._files():
            found = _read(file, self._key, len(self.known))
            if found is not None:
                new = found["known"] != OPEN
                self.known[new], self.loss[new] = found["known"][new], found["loss"][new]

    def save(self, *, now: bool = False) -> None:
        """Write the verdicts so far, if the last time is a while ago."""
        if now or time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES:
            tensors: dict[str, npt.NDArray[Any]] = {"known": self.known, "loss": self.loss}
            with atomic.whole(self._file) as unfinished:
                metadata = {"key": self._key, "sha256": _digest(tensors)}
                save_file(tensors, unfinished, metadata=metadata)
            self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove what was saved, once there is a result."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """What the ranks of this evaluation have saved, now or before."""
        start = glob.escape(_beside(self._out, self._key, "rank-").name)
        return list(self._out.parent.glob(f"{start}*"))


class Answers:
    """The answers that were decoded so far, by question: a line each, added as they come.

    Answers are decoded up to `max_length` symbols; those cut at another length are not taken over.
    """

    def __init__(self, out: Path, key: str, max_length: int) -> None:
        self.max_length = max_length
        self.texts: dict[int, str] = {}
        self._file = _beside(out, key, "answers")
        self._header = [key, max_length]  # the first line

    def read(self) -> None:
        """Take over what is there already; a line that was cut off or damaged ends it."""
        try:
            lines = self._file.read_text("utf-8").splitlines()
            if not lines or json.loads(lines[0]) != self._header:
                return
            for line in lines[1:]:
                number, text, checksum = json.loads(line)
                if checksum != _checksum(number, text):
                    return
                self.texts[number] = text
        except (OSError, ValueError, TypeError, RecursionError):
            return

    def begin(self) -> None:
        """Write anew what was read, so that new lines follow whole ones."""
        with atomic.whole(self._file) as unfinished:
            lines = [json.dumps(self._header) + "\n", *map(_line, self.texts.items())]
            unfinished.write_text("".join(lines), "utf-8")

    def add(self, texts: Mapping[int, str]) -> None:
        """Add answers, here and in the file."""
        self.texts.update(texts)
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(map(_line, texts.items()))

    def remove(self) -> None:
        """Remove the file, once there is a result."""
        self._file.unlink(missing_ok=True)


def _beside(out: Path, key: str, name: str) -> Path:
    return out.with_name(f".{out.name}.{key[:12]}.{name}")


def _read(file: Path, key: str, n: int) -> dict[str, npt.NDArray[Any]] | None:
    """What a file holds, if it is whole and of the same model and questions."""
    try:
        with safe_open(file, "numpy") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("key") != key:
                return None
            found = {name: opened.get_tensor(name) for name in ("known", "loss")}
    except (OSError, SafetensorError, TypeError, ValueError, KeyError):
        return None
    is_whole = metadata.get("sha256") == _digest(found)
    return found if is_whole and all(array.shape == (n,) for array in found.values()) else None


def _digest(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in tensors.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _line(answer: tuple[int, str]) -> str:
    return json.dumps([*answer, _checksum(*answer)]) + "\n"


def _checksum(number: int, text: str) -> int:
    return zlib.crc32(json.dumps([number, text]).encode())
