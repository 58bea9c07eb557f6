"""Validation of the rows of a corpus: record batches of questions and answers with their lines."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.modules import CHARACTERS, MAX_ANSWER, MAX_QUESTION
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.summary import texts_as_bytes

_IS_ALLOWED = np.isin(np.arange(256), np.frombuffer(CHARACTERS.encode(), np.uint8))


def check(batch: pa.RecordBatch, name: str, report: Report) -> pa.RecordBatch:
    """Return the valid rows of the file with this name; report the others."""
    faults: list[tuple[int, int, str, str]] = []  # row, line, what is wrong, details
    for noun, longest in (("question", MAX_QUESTION), ("answer", MAX_ANSWER)):
        texts = batch.column(noun)
        offsets, data = texts_as_bytes(texts)
        lengths = offsets[1:] - offsets[:-1]
        is_wrong = (lengths < 1) | (lengths > longest)
        if not MATHEMATICS.vocabulary.knows(data, offsets):
            foreign = np.flatnonzero(~_IS_ALLOWED[np.frombuffer(data, np.uint8)])
            is_wrong[np.searchsorted(offsets, foreign, side="right") - 1] = True
        for row in np.flatnonzero(is_wrong).tolist():
            line = batch.column(f"{noun}_line")[row].as_py()
            faults.append((row, line, *_what_is_wrong(texts[row], noun, longest)))
    if not faults:
        return batch
    good = np.ones(batch.num_rows, dtype=bool)
    for row, line, reason, detail in sorted(faults, key=lambda fault: fault[0]):
        report.fault(name, line, reason, int(good[row]), f"{reason}: {detail}")
        good[row] = False
    return batch.filter(pa.array(good))


def _what_is_wrong(text: pa.StringScalar, noun: str, longest: int) -> tuple[str, str]:
    """Return the kind of fault and its details."""
    shown = text.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if not shown:
        return f"empty {noun}", "the line is empty"
    excerpt = repr(shown if len(shown) <= 40 else shown[:39] + "…")
    foreign = next((character for character in shown if character not in CHARACTERS), None)
    if foreign is not None:
        return f"{noun} with a character outside the 69", f"{foreign!r} in {excerpt}"
    return f"{noun} of more than {longest} characters", f"{len(shown)} in {excerpt}"


def by_value(batch: pa.RecordBatch, name: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of each value of a column, in order of first occurrence."""
    column = batch.column(name) if name in batch.schema.names else pa.nulls(1, pa.string())
    values = pc.unique(column).to_pylist()
    for value in values:
        is_value = pc.is_null(column) if value is None else pc.equal(column, value)
        yield value, batch.filter(is_value) if len(values) > 1 else batch
