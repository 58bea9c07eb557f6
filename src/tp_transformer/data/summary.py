"""Summaries of the texts of a segment: the distribution of lengths, and checksums.

They are computed when a store is written, and again when its rows are read.
"""

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tp_transformer.data.manifest import Segment
from tp_transformer.data.task import Task


class Summary:
    """The summary of the texts of a segment, independent of how they are divided into pieces."""

    def __init__(self, task: Task) -> None:
        self._task = task
        # Numbers of questions and of answers with 0, 1, 2, … tokens.
        self._lengths = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        # Separate checksums of the lengths and of the bytes of questions and of answers, so that
        # the sizes of pieces have no effect. SHA-256 would take twice the time (0.6 ns per byte).
        self._checksums = [0, 0, 0, 0]

    def add(self, questions: pa.StringArray, answers: pa.StringArray) -> None:
        """Add texts, which must be valid Arrow arrays."""
        vocabulary = self._task.vocabulary
        limits = self._task.max_question, self._task.max_answer
        for column, (texts, limit) in enumerate(zip((questions, answers), limits, strict=True)):
            offsets, data = texts_as_bytes(texts)
            n_bytes = offsets[1:] - offsets[:-1]
            is_empty = n_bytes.min(initial=1) < 1
            if not is_empty:
                counts = vocabulary.count(np.frombuffer(data, np.uint8), offsets[:-1], n_bytes)
                is_long = limit is not None and counts.max(initial=1) > limit
            if is_empty or is_long:
                most = "any number of" if limit is None else limit
                raise ValueError(f"every text must have 1 to {most} {vocabulary.tokenisation}")
            before = self._lengths[column]
            self._lengths[column] = np.bincount(counts, minlength=len(before))
            self._lengths[column][: len(before)] += before
            # No longer than the longest text requires.
            longest = 2**31 - 1 if limit is None else limit * vocabulary.bytes_per_token
            lengths = n_bytes.astype(np.min_scalar_type(longest)).tobytes()
            parts: tuple[bytes, bytes | memoryview] = lengths, data
            for place, part in enumerate(parts, 2 * column):
                self._checksums[place] = zlib.crc32(part, self._checksums[place])

    def segment(self, module: str, difficulty: str | None, start: int) -> Segment:
        """Return the texts as a segment of a split that starts at a row."""
        question_lengths, answer_lengths = (tuple(counts.tolist()) for counts in self._lengths)
        return Segment(
            module=module,
            difficulty=difficulty,
            start=start,
            count=sum(question_lengths),
            checksum="".join(f"{checksum:08x}" for checksum in self._checksums),
            question_lengths=question_lengths,
            answer_lengths=answer_lengths,
        )


def texts_as_bytes(texts: pa.StringArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return the offsets of the texts of an array, from 0, and their bytes; nothing is copied."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = memoryview(data if data is not None else b"")[offsets[0] : offsets[-1]]
    return offsets - offsets[0], text
