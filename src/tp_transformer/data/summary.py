"""What the texts of a segment add up to: how many of which length, and checksums.

Computed when a store is written, and again when its rows are read through.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tp_transformer.data.manifest import Segment
from tp_transformer.data.mathematics.modules import MAX_ANSWER, MAX_QUESTION
from tp_transformer.data.vocabulary import CHARACTERS

_CHARACTERS = CHARACTERS.encode()


@dataclass
class Summary:
    """What a segment's texts add up to, whatever the pieces they came in."""

    question_lengths: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(MAX_QUESTION + 1, np.int64)
    )
    answer_lengths: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(MAX_ANSWER + 1, np.int64)
    )
    # Of lengths and bytes of questions, lengths and bytes of answers: one each, so that the sizes
    # of the pieces do not matter. SHA-256 would take twice the time (0.6 ns a byte).
    checksums: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def add(self, questions: pa.StringArray, answers: pa.StringArray) -> None:
        """Count further texts, which must be valid Arrow arrays."""
        columns = ((questions, self.question_lengths), (answers, self.answer_lengths))
        for column, (texts, histogram) in enumerate(columns):
            offsets, data = texts_as_bytes(texts)
            lengths = offsets[1:] - offsets[:-1]
            longest = len(histogram) - 1
            if lengths.min(initial=1) < 1 or lengths.max(initial=1) > longest:
                raise ValueError(f"every text must have 1 to {longest} characters")
            histogram += np.bincount(lengths, minlength=len(histogram))
            parts: tuple[bytes, bytes | memoryview] = lengths.astype(np.uint8).tobytes(), data
            for place, part in enumerate(parts, 2 * column):
                self.checksums[place] = zlib.crc32(part, self.checksums[place])

    def segment(self, module: str, difficulty: str | None, start: int) -> Segment:
        """The texts as a segment of a split that starts at a row."""
        return Segment(
            module=module,
            difficulty=difficulty,
            start=start,
            count=int(self.question_lengths.sum()),
            checksum="".join(f"{checksum:08x}" for checksum in self.checksums),
            question_lengths=_without_last_zeros(self.question_lengths),
            answer_lengths=_without_last_zeros(self.answer_lengths),
        )


def _without_last_zeros(counts: npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(counts[: int(counts.nonzero()[0].max(initial=-1)) + 1].tolist())


def texts_as_bytes(texts: pa.StringArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """The offsets of an array's texts, from 0, and their bytes end to end; nothing is copied."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = memoryview(data if data is not None else b"")[offsets[0] : offsets[-1]]
    return offsets - offsets[0], text


def has_foreign(text: bytes | memoryview) -> bool:
    """Whether a text holds anything but the 69 characters."""
    # `translate` deletes what is allowed: 0.6 ns a byte, where a lookup in numpy takes 3.
    return bool(bytes(text).translate(None, _CHARACTERS))
