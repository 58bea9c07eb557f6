"""Parsers of the files of a corpus, one for each format, and the validation of rows.

A parser takes the blocks of a file and yields Arrow record batches with the columns `question`,
`answer`, their lines, and `difficulty` and `module` if the rows have them. Text is not parsed line
by line: line breaks, texts and characters are processed for a whole block at once.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.modules import MAX_QUESTION
from tp_transformer.data.mathematics.sources import (
    COLUMNS,
    JSON_LINES,
    PARQUET,
    TEXT,
    Content,
    SourceFile,
)
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import texts_as_bytes
from tp_transformer.data.vocabulary import CHARACTERS, MAX_ANSWER

# Far longer than any line of the dataset; a file without line breaks must not fill the memory.
_MAX_LINE = 2**20

_IS_ALLOWED = np.isin(np.arange(256), np.frombuffer(CHARACTERS.encode(), np.uint8))

Places = npt.NDArray[np.int64]
Parser = Callable[[SourceFile, Iterable[Any], Report], Iterator[pa.RecordBatch]]


def count_rows(file: SourceFile, blocks: Iterable[Content]) -> int:
    """Return the number of rows of a file that is skipped as a whole."""
    for block in blocks:
        if isinstance(block, bytes | memoryview):
            file.line += bytes(block).count(b"\n")
        else:
            file.line += block.num_rows
    return (file.line - 1) // (2 if file.kind == TEXT else 1)


def _parse_pairs(
    file: SourceFile, blocks: Iterable[bytes | memoryview], report: Report
) -> Iterator[pa.RecordBatch]:
    """v1.0: questions and answers on alternating lines.

    Lines may end as on Windows, and the last line may lack a line break.
    """
    rest = b""
    for block in chain(blocks, [None]):
        if block is None:
            block = b"" if not rest or rest.endswith(b"\n") else b"\n"
        data = rest + block
        bytes_ = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(bytes_ == ord("\n"))
        ends = ends[: len(ends) // 2 * 2]
        rest = data[int(ends[-1]) + 1 :] if len(ends) else data
        if len(ends):
            starts = np.concatenate([[0], ends[:-1] + 1])
            if b"\r" in data:
                ends = ends - ((bytes_[ends - 1] == ord("\r")) & (ends > starts))
            texts = [cut_out(data, starts[i::2], ends[i::2]) for i in (0, 1)]
            lines = np.arange(file.line, file.line + len(ends))
            file.line += len(ends)
            yield _batch(texts, lines[0::2], lines[1::2])
        if len(rest) > 2 * _MAX_LINE:
            line = file.line + rest.count(b"\n")
            reason = f"a line of more than {_MAX_LINE:,} bytes; the rest of the file is not text"
            report.fault(file.name, line, reason, 0)
            return
    if rest:
        reason = "a question without an answer: the number of lines is odd"
        report.fault(file.name, file.line, reason, 1)


def _parse_json_lines(
    file: SourceFile, blocks: Iterable[bytes | memoryview], report: Report
) -> Iterator[pa.RecordBatch]:
    """JSON lines: an object with `question` and `answer` on each line."""
    rest, is_long = b"", False  # the start of the next line; whether that line is too long
    for block in chain(blocks, [None]):
        if block is None and not rest:
            return
        *lines, rest = (rest + (b"\n" if block is None else block)).split(b"\n")
        if is_long and lines:
            del lines[0]
            file.line, is_long = file.line + 1, False
        rows, numbers = [], []
        for number, line in enumerate(lines, file.line):
            try:
                rows.append(_json_row(line))
                numbers.append(number)
            except (ValueError, TypeError, AttributeError, RecursionError):
                reason = "not a JSON object with the texts `question` and `answer`"
                report.fault(file.name, number, reason, 1)
        file.line += len(lines)
        if rows:
            arrays = [pa.array(texts, pa.string()) for texts in zip(*rows, strict=True)]
            table = pa.RecordBatch.from_arrays(arrays, COLUMNS)
            yield _from_table(table, np.array(numbers))
        if is_long:
            rest = b""
        elif len(rest) > _MAX_LINE:
            report.fault(file.name, file.line, f"a line of more than {_MAX_LINE:,} bytes", 1)
            rest, is_long = b"", True


def _json_row(line: bytes) -> tuple[str | None, ...]:
    row = tuple(map(json.loads(line).get, COLUMNS))
    # Raises for values that are not texts, and for surrogates.
    "".join(text for text in row if text is not None).encode()
    return row


def _parse_tables(
    file: SourceFile, blocks: Iterable[pa.RecordBatch], report: Report
) -> Iterator[pa.RecordBatch]:
    """Record batches of a Parquet file with the columns `question` and `answer`."""
    for block in blocks:
        lines = np.arange(file.line, file.line + block.num_rows)
        try:
            block.validate(full=True)  # Arrow accepts any bytes as text
            batch = _from_table(block, lines)
        except pa.ArrowInvalid:
            good = np.array([_is_text(block.slice(row, 1)) for row in range(len(lines))])
            for line in lines[~good].tolist():
                report.fault(file.name, line, "bytes that are not text", 1)
            batch = _from_table(block.filter(pa.array(good)), lines[good])
        file.line += block.num_rows
        yield batch


def _is_text(row: pa.RecordBatch) -> bool:
    try:
        for column in row.columns:
            column.cast(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


PARSERS: dict[str, Parser] = {
    TEXT: _parse_pairs,
    JSON_LINES: _parse_json_lines,
    PARQUET: _parse_tables,
}


def _from_table(table: pa.RecordBatch, lines: Places) -> pa.RecordBatch:
    columns = {
        name: column.cast(pa.string())
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }
    texts = [unwrap(pc.fill_null(columns.pop(name), "")) for name in COLUMNS[:2]]
    if "difficulty" in columns:
        levels = columns["difficulty"]
        columns["difficulty"] = pc.if_else(pc.equal(levels, ""), None, levels)
    return _batch(texts, lines, lines, **columns)


def _batch(
    texts: list[pa.StringArray],
    question_lines: Places,
    answer_lines: Places,
    **more: pa.StringArray,
) -> pa.RecordBatch:
    lines = {"question_line": pa.array(question_lines), "answer_line": pa.array(answer_lines)}
    return pa.record_batch({"question": texts[0], "answer": texts[1], **lines, **more})


def cut_out(data: bytes | memoryview, starts: Places, ends: Places) -> pa.StringArray:
    """Return the texts `data[starts[i]:ends[i]]`, which are in order and do not overlap.

    Texts in Arrow are contiguous, so the bytes between two texts become a text too, which is then
    not selected: about 30 ns for each text and one copy of its bytes.
    """
    if not len(starts):
        return pa.array([], pa.string())
    offsets = np.stack([starts, ends], axis=1).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    return with_gaps.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))


def unwrap(texts: pa.StringArray) -> pa.StringArray:
    """Return texts without the wrapping of the Hugging Face copy, which has printed bytes.

    Texts that are not wrapped are unchanged, except for a line break at their end.
    """
    offsets, view = texts_as_bytes(texts)
    if not len(view):
        return texts
    data = np.frombuffer(view, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)

    def at(places: Places) -> npt.NDArray[np.uint8]:
        return data[np.clip(places, 0, len(data) - 1)]

    # Only texts that end in an escaped line break: `b'x'` consists of the 69 characters, so it
    # could be a question.
    quote = at(starts + 1)
    wrapped = (ends - starts >= 5) & (at(starts) == ord("b")) & (at(ends - 1) == quote)
    wrapped &= (quote == ord("'")) | (quote == ord('"'))
    wrapped &= (at(ends - 3) == ord("\\")) & (at(ends - 2) == ord("n"))
    starts, ends = starts + 2 * wrapped, ends - 3 * wrapped
    bare = ~wrapped & (ends > starts) & (at(ends - 1) == ord("\n"))
    bare_texts = cut_out(view, starts, ends - bare)
    return _unescape(bare_texts, texts) if b"\\" in bytes(view) else bare_texts


def _unescape(texts: pa.StringArray, wrapped: pa.StringArray) -> pa.StringArray:
    """Parse texts that still have a backslash as Python literals; the 69 characters need none."""
    rows = np.flatnonzero(pc.match_substring(texts, "\\"))
    if not len(rows):
        return texts
    values = texts.to_pylist()
    for row in rows:
        try:
            value = ast.literal_eval(wrapped[row].as_py())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue  # unchanged, so that it is rejected later
        if isinstance(value, bytes):
            values[row] = value.decode("latin-1").removesuffix("\n")
    return pa.array(values, pa.string())


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
