"""Parsers of the files of a corpus, one for each format.

Files arrive in blocks of a few megabytes and are converted to Arrow arrays. There is no loop over
lines: line breaks, texts and characters are processed for a whole block at once. Only a block that
contains a fault is searched for it.
"""

import ast
import json
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.pieces import IS_ALLOWED, Bytes, Piece, Places
from tp_transformer.data.summary import texts_as_bytes

COLUMNS = ("question", "answer", "difficulty", "module")
_IS_ODD = (~IS_ALLOWED).tobytes()  # including line breaks
# Far longer than any line of the dataset; a file without line breaks must not fill the memory.
_MAX_LINE = 2**20
_MULTIPLES: dict[int, pa.Int32Array] = {}


class Parser(Protocol):
    """Converts the blocks of one file to pieces."""

    line: int  # the number of the first line that has not been converted

    def feed(self, block: Any) -> Piece | None:
        """Process the next block of the file; yield the rows that are complete."""

    def close(self) -> Piece | None:
        """Yield the remaining rows at the end of the file."""


class PairParser:
    """v1.0: questions and answers on alternating lines.

    Lines may end as on Windows, and the last line may lack a line break.
    """

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.line = name, report, 1
        self._rest = b""
        self._gave_up = False

    def feed(self, block: bytes | memoryview) -> Piece | None:
        """Process the next block of the file; yield the pairs of lines that are complete."""
        if self._gave_up:
            return None
        data = self._rest + block
        bytes_ = np.frombuffer(data, np.uint8)
        # One pass finds line breaks and invalid characters: 0.6 ns per byte.
        found = np.flatnonzero(np.frombuffer(data.translate(_IS_ODD), np.bool_))
        is_newline = bytes_[found] == ord("\n")
        clean = bool(is_newline.all())
        ends = found if clean else found[is_newline]
        ends = ends[: len(ends) // 2 * 2]
        cut = int(ends[-1]) + 1 if len(ends) else 0
        self._rest = data[cut:]
        self.line += len(ends)
        if len(self._rest) > 2 * _MAX_LINE:
            self._give_up()
        if not len(ends):
            return None
        offsets = np.empty(2 * len(ends), dtype=np.int32)  # start and end of each line
        offsets[0] = 0
        offsets[1::2] = ends
        offsets[2::2] = ends[:-1]
        offsets[2::2] += 1
        if not clean:
            offsets[1::2] -= (bytes_[ends - 1] == ord("\r")) & (ends > offsets[0::2])
        questions, answers = _every(4, data, offsets), _every(4, data, offsets[2:])
        lines = range(self.line - len(ends), self.line, 2)
        return Piece(questions, answers, lines, answer_below=True, clean=clean)

    def close(self) -> Piece | None:
        """Yield the last pair, if its line break is missing."""
        if not self._rest:
            return None
        piece = None if self._rest.endswith(b"\n") else self.feed(b"\n")
        if self._rest:
            reason = "a question without an answer: the number of lines is odd"
            self.report.fault(self.name, self.line, reason, 1)
        return piece

    def _give_up(self) -> None:
        line = self.line + self._rest.count(b"\n")
        reason = f"a line of more than {_MAX_LINE:,} bytes; the rest of the file is not text"
        self.report.fault(self.name, line, reason, 0)
        self._rest, self._gave_up = b"", True


class JsonLinesParser:
    """JSON lines: an object with `question` and `answer` on each line."""

    _SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.line = name, report, 1
        self._rest = b""
        self._in_long_line = False

    def feed(self, block: bytes) -> Piece | None:
        """Process the next block of the file; yield the rows of the lines that are complete."""
        data = self._rest + block
        if self._in_long_line:
            end = data.find(b"\n") + 1
            if not end:
                return None
            data, self._in_long_line = data[end:], False
            self.line += 1
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        piece = self._parse(data[:cut]) if cut else None
        if len(self._rest) > _MAX_LINE:
            self.report.fault(self.name, self.line, f"a line of more than {_MAX_LINE:,} bytes", 1)
            self._rest, self._in_long_line = b"", True
        return piece

    def close(self) -> Piece | None:
        """Yield the last row, if its line break is missing."""
        return self.feed(b"\n") if self._rest else None

    def _parse(self, data: bytes) -> Piece | None:
        n_lines = data.count(b"\n")
        options = arrow_json.ParseOptions(
            explicit_schema=self._SCHEMA, unexpected_field_behavior="ignore"
        )
        blocks = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        lines = np.arange(self.line, self.line + n_lines)
        try:
            table = arrow_json.read_json(pa.BufferReader(data), blocks, options)
            table.validate(full=True)  # Arrow accepts any bytes as text
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != n_lines:
            table, lines = self._parse_one_by_one(data)
        self.line += n_lines
        return _piece_of(table, lines)

    def _parse_one_by_one(self, data: bytes) -> tuple[pa.Table, Places]:
        """Return the valid lines and their numbers; report the others."""
        rows, lines = [], []
        for number, line in enumerate(data.split(b"\n")[:-1], self.line):
            try:
                value = json.loads(line)
                row = {name: value.get(name) for name in COLUMNS}
                rows.append(pa.array([row], pa.struct(self._SCHEMA)).to_pylist()[0])
                lines.append(number)
            except (ValueError, AttributeError, RecursionError, pa.ArrowException):
                reason = "not a JSON object with the texts `question` and `answer`"
                self.report.fault(self.name, number, reason, 1)
        return pa.Table.from_pylist(rows, self._SCHEMA), np.array(lines, dtype=np.int64)


class TableParser:
    """Record batches of a Parquet file with the columns `question` and `answer`."""

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.line = name, report, 1

    def feed(self, block: pa.RecordBatch) -> Piece | None:
        """Yield the rows of a record batch."""
        table = pa.Table.from_batches([block])
        lines = np.arange(self.line, self.line + block.num_rows)
        try:
            table.validate(full=True)  # Arrow accepts any bytes as text
            piece = _piece_of(table, lines)
        except pa.ArrowInvalid:
            good = np.array([self._is_text(table.slice(row, 1), row) for row in range(len(lines))])
            piece = _piece_of(table.filter(pa.array(good)), lines[good])
        self.line += block.num_rows
        return piece

    def _is_text(self, row: pa.Table, number: int) -> bool:
        """Whether a row has two texts; otherwise it is reported."""
        try:
            for name in row.column_names:
                row.column(name).cast(pa.string()).validate(full=True)
        except pa.ArrowInvalid:
            self.report.fault(self.name, self.line + number, "bytes that are not text", 1)
            return False
        return True

    def close(self) -> Piece | None:
        """Yield nothing, because record batches are complete."""
        return None


class Counter:
    """Counts the rows of a file that is skipped as a whole."""

    def __init__(self, lines_per_row: int) -> None:
        self.line = 1
        self._lines_per_row = lines_per_row

    @property
    def n_rows(self) -> int:
        """The number of skipped rows."""
        return (self.line - 1) // self._lines_per_row

    def feed(self, block: Any) -> Piece | None:
        """Count the rows of a block."""
        is_table = isinstance(block, pa.RecordBatch)
        self.line += block.num_rows if is_table else bytes(block).count(b"\n")
        return None

    def close(self) -> Piece | None:
        """Yield nothing."""
        return None


def cut_out(data: bytes | memoryview, starts: Places, ends: Places) -> pa.StringArray:
    """Return the texts `data[starts[i]:ends[i]]`, which are in order and do not overlap."""
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    return _every(2, data, offsets)


def _every(step: int, data: bytes | memoryview, offsets: Any) -> pa.StringArray:
    """Return every `step`-th of the texts between consecutive offsets, starting with the first.

    Texts in Arrow are contiguous, so the bytes between two texts become a text too, which is then
    not selected: about 30 ns for each text and one copy of its bytes.
    """
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(pa.string(), max(len(offsets) - 1, 0), buffers)
    return with_gaps.take(_multiples(step, -(-len(with_gaps) // step)))


def _multiples(step: int, count: int) -> pa.Int32Array:
    """Return 0, `step`, 2 `step`, …; cached between calls."""
    if count > len(_MULTIPLES.get(step, ())):
        _MULTIPLES[step] = pa.array(np.arange(0, 2 * count * step, step, dtype=np.int32))
    return _MULTIPLES[step][:count] if count else pa.array([], pa.int32())


def unwrap(texts: pa.StringArray) -> pa.StringArray:
    """Return texts without the wrapping of the Hugging Face copy, which has printed bytes.

    Texts that are not wrapped are unchanged, except for a line break at their end.
    """
    offsets, view = texts_as_bytes(texts)
    if not len(view):
        return texts
    data = np.frombuffer(view, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)

    def at(places: Places) -> Bytes:
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


def _piece_of(table: pa.Table, lines: Places) -> Piece | None:
    if not table.num_rows:
        return None
    columns = {name: _texts_of(table, name) for name in table.column_names if name in COLUMNS}
    difficulties = columns.get("difficulty")
    if difficulties is not None:
        difficulties = pc.if_else(pc.equal(difficulties, ""), None, difficulties)
    questions, answers = (unwrap(pc.fill_null(columns[name], "")) for name in COLUMNS[:2])
    modules = columns.get("module")
    return Piece(questions, answers, lines, difficulties=difficulties, modules=modules)


def _texts_of(table: pa.Table, name: str) -> pa.StringArray:
    chunks = table.column(name).cast(pa.string()).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
