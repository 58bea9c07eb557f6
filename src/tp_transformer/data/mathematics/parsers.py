"""From the bytes of a corpus's file to pieces of it, for each format.

Files come in blocks of a few megabytes and leave as Arrow arrays. Nothing here loops over lines:
newlines are found, texts cut out and characters looked at for a whole block at once. Only when a
block holds a fault is it searched for.
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
_IS_ODD = (~IS_ALLOWED).tobytes()  # newlines included
# No line of the dataset comes near this; a file without newlines must not fill the memory.
_MAX_LINE = 2**20
_MULTIPLES: dict[int, pa.Int32Array] = {}


class Parser(Protocol):
    """Turns the blocks of one file into pieces."""

    line: int  # the number of the first line that has not been turned into rows

    def feed(self, block: Any) -> Piece | None:
        """Take the file's next block; give the rows that are complete."""

    def close(self) -> Piece | None:
        """The file has ended; give the rest."""


class PairParser:
    """v1.0: a question and its answer on alternating lines.

    Lines may end as Windows ends them, and the last may lack its end.
    """

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.line = name, report, 1
        self._rest = b""
        self._gave_up = False

    def feed(self, block: bytes | memoryview) -> Piece | None:
        """Take the file's next block; give the pairs of lines that are complete."""
        if self._gave_up:
            return None
        data = self._rest + block
        bytes_ = np.frombuffer(data, np.uint8)
        # One pass finds newlines and foreign characters alike: 0.6 ns a byte.
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
        offsets = np.empty(2 * len(ends), dtype=np.int32)  # each line's start and end
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
        """The last pair, if it lacked the end of its line."""
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
    """A JSON object with `question` and `answer` on every line."""

    _SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.line = name, report, 1
        self._rest = b""
        self._in_long_line = False

    def feed(self, block: bytes) -> Piece | None:
        """Take the file's next block; give the rows of the lines that are complete."""
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
        """The last row, if it lacked the end of its line."""
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
            table.validate(full=True)  # Arrow takes any bytes for text
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != n_lines:
            table, lines = self._parse_one_by_one(data)
        self.line += n_lines
        return _piece_of(table, lines)

    def _parse_one_by_one(self, data: bytes) -> tuple[pa.Table, Places]:
        """The lines that are as they should be, and their numbers; faults are reported."""
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
        """The rows of a record batch."""
        table = pa.Table.from_batches([block])
        lines = np.arange(self.line, self.line + block.num_rows)
        try:
            table.validate(full=True)  # Arrow takes any bytes for text
            piece = _piece_of(table, lines)
        except pa.ArrowInvalid:
            good = np.array([self._is_text(table.slice(row, 1), row) for row in range(len(lines))])
            piece = _piece_of(table.filter(pa.array(good)), lines[good])
        self.line += block.num_rows
        return piece

    def _is_text(self, row: pa.Table, number: int) -> bool:
        """Whether a row holds texts; if not, that is reported."""
        try:
            for name in row.column_names:
                row.column(name).cast(pa.string()).validate(full=True)
        except pa.ArrowInvalid:
            self.report.fault(self.name, self.line + number, "bytes that are not text", 1)
            return False
        return True

    def close(self) -> Piece | None:
        """Nothing is ever left over."""
        return None


class Counter:
    """Counts the rows of a file that is left out as a whole."""

    def __init__(self, lines_per_row: int) -> None:
        self.line = 1
        self._lines_per_row = lines_per_row

    @property
    def n_rows(self) -> int:
        """How many rows have been left out."""
        return (self.line - 1) // self._lines_per_row

    def feed(self, block: Any) -> Piece | None:
        """Count a block."""
        is_table = isinstance(block, pa.RecordBatch)
        self.line += block.num_rows if is_table else bytes(block).count(b"\n")
        return None

    def close(self) -> Piece | None:
        """Nothing is kept."""
        return None


def cut_out(data: bytes | memoryview, starts: Places, ends: Places) -> pa.StringArray:
    """The texts `data[starts[i]:ends[i]]`, which follow one another and do not overlap."""
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    return _every(2, data, offsets)


def _every(step: int, data: bytes | memoryview, offsets: Any) -> pa.StringArray:
    """Every `step`-th of the texts between consecutive offsets, from the first.

    Arrow's texts lie end to end, so what is between two texts becomes a text of its own, and is
    then not taken: about 30 ns for each text and one copy of its bytes.
    """
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(pa.string(), max(len(offsets) - 1, 0), buffers)
    return with_gaps.take(_multiples(step, -(-len(with_gaps) // step)))


def _multiples(step: int, count: int) -> pa.Int32Array:
    """0, `step`, 2 `step`, … kept from call to call."""
    if count > len(_MULTIPLES.get(step, ())):
        _MULTIPLES[step] = pa.array(np.arange(0, 2 * count * step, step, dtype=np.int32))
    return _MULTIPLES[step][:count] if count else pa.array([], pa.int32())


def unwrap(texts: pa.StringArray) -> pa.StringArray:
    r"""Texts without the wrapping of the Hugging Face copy, which printed bytes: `b'…\n'`.

    Texts that are not wrapped stay, but for a newline at their end.
    """
    offsets, view = texts_as_bytes(texts)
    if not len(view):
        return texts
    data = np.frombuffer(view, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)

    def at(places: Places) -> Bytes:
        return data[np.clip(places, 0, len(data) - 1)]

    # Only what ends in an escaped newline: `b'x'` alone is made of the 69 characters, and so might
    # be a question.
    quote = at(starts + 1)
    wrapped = (ends - starts >= 5) & (at(starts) == ord("b")) & (at(ends - 1) == quote)
    wrapped &= (quote == ord("'")) | (quote == ord('"'))
    wrapped &= (at(ends - 3) == ord("\\")) & (at(ends - 2) == ord("n"))
    starts, ends = starts + 2 * wrapped, ends - 3 * wrapped
    bare = ~wrapped & (ends > starts) & (at(ends - 1) == ord("\n"))
    bare_texts = cut_out(view, starts, ends - bare)
    return _unescape(bare_texts, texts) if b"\\" in bytes(view) else bare_texts


def _unescape(texts: pa.StringArray, wrapped: pa.StringArray) -> pa.StringArray:
    """Read what still has a backslash as Python would; the 69 characters never need one."""
    rows = np.flatnonzero(pc.match_substring(texts, "\\"))
    if not len(rows):
        return texts
    values = texts.to_pylist()
    for row in rows:
        try:
            value = ast.literal_eval(wrapped[row].as_py())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue  # left as it is, for the check to refuse
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
