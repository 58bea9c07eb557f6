"""The verdicts and answers of an evaluation in progress, saved beside its result, if it has a file.

Each rank writes its own file, so saving needs no synchronization. A resumed evaluation reads the
files of all ranks for the same model and questions, and computes only what is missing; a verdict
belongs to a question, not to a batch. File names contain the key of the evaluation, so that
evaluations with the same output path do not share files.
"""

import glob
import hashlib
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tp_transformer.runtime.files import atomic_write
from tp_transformer.scoring.verdict import Bools, Floats

SECONDS_BETWEEN_SAVES = 30.0

OPEN, WRONG, RIGHT, UNSURE = range(4)  # state of a question; UNSURE: to be decided in float64
States = npt.NDArray[np.uint8]


class _Saved(msgspec.Struct):
    """The contents of a file."""

    states: bytes
    loss: bytes
    answers: dict[int, str]


class Journal:
    """The verdicts and decoded answers so far, by question, saved if the result has a file."""

    def __init__(self, out: Path | None, rank: int, key: str, n: int) -> None:
        self.states: States = np.zeros(n, np.uint8)
        self.loss: Floats = np.zeros(n)
        self.answers: dict[int, str] = {}
        self._key, self._out = key, out
        self._file = None if out is None else self._beside(out, f"{rank}")
        self._saved = time.monotonic()

    @property
    def done(self) -> Bools:
        """Which questions have a verdict."""
        return self.states != OPEN

    def read(self) -> None:
        """Read what all ranks have saved; damaged files are ignored."""
        for file in self._files():
            checksum, content = file.read_bytes()[:32], file.read_bytes()[32:]
            if checksum != self._checksum(content):
                continue
            saved = msgspec.msgpack.decode(content, type=_Saved)
            states = np.frombuffer(saved.states, np.uint8)
            new = states != OPEN
            self.states[new] = states[new]
            self.loss[new] = np.frombuffer(saved.loss)[new]
            self.answers |= saved.answers

    def save(self, *, now: bool = False) -> None:
        """Write what there is so far, if the last save is half a minute old."""
        if self._file is None or not (
            now or time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES
        ):
            return
        saved = _Saved(self.states.tobytes(), self.loss.tobytes(), self.answers)
        content = msgspec.msgpack.encode(saved)
        with atomic_write(self._file) as unfinished:
            unfinished.write_bytes(self._checksum(content) + content)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove the saved files, after the result is written."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _checksum(self, content: bytes) -> bytes:
        """Return a checksum that differs for another model, precision or choice of questions."""
        return hashlib.sha256(self._key.encode() + content).digest()

    def _files(self) -> list[Path]:
        """Return the files saved by all ranks of this evaluation."""
        if self._out is None:
            return []
        return list(self._out.parent.glob(f"{glob.escape(self._beside(self._out, '').name)}*"))

    def _beside(self, out: Path, rank: str) -> Path:
        return out.with_name(f".{out.name}.{self._key[:12]}.rank-{rank}")
