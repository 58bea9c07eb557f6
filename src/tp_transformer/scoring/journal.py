"""The verdicts and answers of an evaluation in progress, saved beside its result, if it has a file.

Each rank writes its own files, so saving needs no synchronization. A resumed evaluation reads the
files of all ranks for the same model and questions, and computes only missing verdicts; a verdict
belongs to a question, not to a batch. File names contain the key of the evaluation, so that
evaluations with the same output path do not share files.
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

from tp_transformer.runtime.files import atomic_write
from tp_transformer.scoring.verdict import Bools, Floats

SECONDS_BETWEEN_SAVES = 30.0

OPEN, WRONG, RIGHT, UNSURE = range(4)  # state of a question; UNSURE: to be decided in float64
Known = npt.NDArray[np.uint8]


class Journal:
    """The verdicts so far, by question, saved periodically if the result has a file."""

    def __init__(self, out: Path | None, rank: int, key: str, n: int) -> None:
        self.known: Known = np.zeros(n, np.uint8)
        self.loss: Floats = np.zeros(n)
        self._key = key
        self._out = out
        self._file = None if out is None else _beside(out, key, f"rank-{rank}")
        self._saved = time.monotonic()

    @property
    def done(self) -> Bools:
        """Which questions have a verdict."""
        return self.known != OPEN

    def read(self) -> None:
        """Read the saved verdicts of all ranks."""
        for file in self._files():
            found = _read(file, self._key, len(self.known))
            if found is not None:
                new = found["known"] != OPEN
                self.known[new], self.loss[new] = found["known"][new], found["loss"][new]

    def save(self, *, now: bool = False) -> None:
        """Write the verdicts so far, if the last save is half a minute old."""
        if self._file is None:
            return
        if now or time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES:
            tensors: dict[str, npt.NDArray[Any]] = {"known": self.known, "loss": self.loss}
            with atomic_write(self._file) as unfinished:
                metadata = {"key": self._key, "sha256": _digest(tensors)}
                save_file(tensors, unfinished, metadata=metadata)
            self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove the saved files, after the result is written."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Return the files saved by all ranks of this evaluation."""
        if self._out is None:
            return []
        start = glob.escape(_beside(self._out, self._key, "rank-").name)
        return list(self._out.parent.glob(f"{start}*"))


class Answers:
    """The answers decoded so far, by question, appended line by line to a file beside the result.

    Answers are decoded up to `max_length` tokens; saved answers with another limit are not used.
    """

    def __init__(self, out: Path | None, key: str, max_length: int) -> None:
        self.max_length = max_length
        self.texts: dict[int, str] = {}
        self._file = None if out is None else _beside(out, key, "answers")
        self._header = [key, max_length]  # the first line

    def read(self) -> None:
        """Read the saved answers, up to the first incomplete or damaged line."""
        if self._file is None:
            return
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
        """Rewrite the file with what was read, so that new lines follow complete ones."""
        if self._file is None:
            return
        with atomic_write(self._file) as unfinished:
            lines = [json.dumps(self._header) + "\n", *map(_line, self.texts.items())]
            unfinished.write_text("".join(lines), "utf-8")

    def add(self, texts: Mapping[int, str]) -> None:
        """Add answers, also to the file."""
        self.texts.update(texts)
        if self._file is None:
            return
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(map(_line, texts.items()))

    def remove(self) -> None:
        """Remove the file, after the result is written."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _beside(out: Path, key: str, name: str) -> Path:
    return out.with_name(f".{out.name}.{key[:12]}.{name}")


def _read(file: Path, key: str, n: int) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file, or None if it is damaged or of another evaluation."""
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
