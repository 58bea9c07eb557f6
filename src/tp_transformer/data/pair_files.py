"""Files of questions and answers in common formats, read row by row.

Python's readers of CSV and JSON give the line of each row, for messages; those of Arrow do not.
They read about a million rows in a few seconds. Only one row, or one record batch of Parquet, is in
memory at a time.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as parquet

from tp_transformer.data.columns import Columns
from tp_transformer.data.faults import Report
from tp_transformer.foundation.errors import CorpusError, SettingsError
from tp_transformer.foundation.settings import nearest

FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_ROWS_PER_BATCH = 2**14
_LONGEST_LINE = 2**20  # characters; a file without line breaks must not fill the memory
# Bytes that are not UTF-8 become surrogates, which no valid text contains; they are reported as
# faults of their row.
_ERRORS = "surrogateescape"
# Numbers are texts as they are written: 1.50 is not 1.5.
_READ_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=lambda _: None)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class RawRow(NamedTuple):
    """A row of a file; a value that is missing or not a text is None."""

    line: int
    question: str | None
    answer: str | None
    split: str | None
    group: str | None


class PairFile:
    """A file of pairs.

    Attributes:
        name: the name of the file in messages
        has_splits: whether its rows name their splits
        has_groups: whether its rows name their groups
    """

    def __init__(self, path: Path, name: str, columns: Columns) -> None:
        self.path, self.name, self._columns = path, name, columns
        try:
            found = self._column_names()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise CorpusError(f"{name}: cannot be read: {' '.join(str(error).split())}") from error
        if any("\udc80" <= character <= "\udcff" for character in "".join(found or ())):
            raise CorpusError(f"{name} is not a text in UTF-8")
        self._refuse_other_columns(found)
        self.has_splits = found is not None and columns.split in found
        self.has_groups = found is not None and columns.group in found

    def _refuse_other_columns(self, found: list[str] | None) -> None:
        """Raise if a required column is absent, or if there are two of the same name."""
        for column in fields(Columns):
            name, noun = getattr(self._columns, column.name), column.name
            if found is None:
                if name != column.default:
                    raise SettingsError(f"{self.name} is text without columns such as {name!r}")
                continue
            is_required = noun in ("question", "answer") or name != column.default
            if is_required and name not in found:
                there = ", ".join(map(repr, found)) or "none"
                raise CorpusError(
                    f"{self.name} has no column {name!r}{nearest(name, found)}; name the column of "
                    f"{noun}s with --{noun}-column: the columns are {there}"
                )
            if found.count(name) > 1:
                raise CorpusError(f"{self.name} has {found.count(name)} columns {name!r}")

    @property
    def suffix(self) -> str:
        """The suffix that names the format."""
        return self.path.suffix.lower()

    @property
    def stem(self) -> str:
        """The name of the file without its suffix and the number of a shard."""
        return _SHARD.sub("", self.path.stem)

    def rows(self, report: Report) -> Iterator[RawRow]:
        """Yield the rows; report those that cannot be read."""
        readers = {".parquet": self._parquet_rows, ".txt": self._text_rows}
        readers |= dict.fromkeys(_DELIMITERS, self._table_rows)
        read = readers.get(self.suffix, self._json_rows)
        try:
            yield from read(report)
        except (OSError, pa.ArrowException) as error:
            reason = f"cannot be read: {' '.join(str(error).split())}"
            report.fault(self.name, None, reason, 0)

    def _column_names(self) -> list[str] | None:
        """Return the names of the columns; None if the format has none."""
        if self.suffix == ".parquet":
            with parquet.ParquetFile(self.path) as file:
                return list(file.schema_arrow.names)
        if self.suffix in _DELIMITERS:
            with self._open() as file:
                return next(csv.reader(file, delimiter=_DELIMITERS[self.suffix]), [])
        if self.suffix == ".txt":
            return None
        with self._open() as file:
            line = next(filter(str.strip, iter(lambda: file.readline(_LONGEST_LINE), "")), "{}")
            first = json.loads(line)
            if not isinstance(first, dict):
                raise ValueError("its first line is not a JSON object")
            return list(first)

    def _open(self) -> TextIO:
        return self.path.open(encoding="utf-8-sig", errors=_ERRORS, newline="")

    def _row(self, line: int, values: Mapping[str, Any]) -> RawRow:
        return RawRow(line, *(_text(values.get(name)) for name in astuple(self._columns)))

    def _text_rows(self, report: Report) -> Iterator[RawRow]:
        """Questions and answers on alternating lines."""
        with self._open() as file:
            question, number = None, 0
            for number, line in enumerate(self._lines(file, report), 1):
                text = line.rstrip("\r\n")
                if question is None:
                    question = text
                else:
                    yield RawRow(number - 1, question, text, None, None)
                    question = None
            if question is not None:
                reason = "a question without an answer: the number of lines is odd"
                report.fault(self.name, number, reason, 1)

    def _json_rows(self, report: Report) -> Iterator[RawRow]:
        with self._open() as file:
            for number, line in enumerate(self._lines(file, report), 1):
                if not line.strip():
                    continue  # as in tables
                try:
                    values = _READ_JSON.decode(line)
                except (ValueError, RecursionError):
                    values = None
                if not isinstance(values, dict):
                    report.fault(self.name, number, "not a JSON object", 1)
                elif late := self._late_column(values):
                    reason = "a column that the first row lacks"
                    report.fault(self.name, number, reason, 1, f"{reason}: {late!r}")
                else:
                    yield self._row(number, values)

    def _late_column(self, values: Mapping[str, Any]) -> str | None:
        """Return the column of splits or groups of a row if the first row has none."""
        expected = (self._columns.split, self.has_splits), (self._columns.group, self.has_groups)
        return next((name for name, is_there in expected if not is_there and name in values), None)

    def _lines(self, file: TextIO, report: Report) -> Iterator[str]:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
            if len(line) == _LONGEST_LINE:
                reason = f"a line of more than {_LONGEST_LINE:,} characters; the rest is not read"
                report.fault(self.name, number, reason, 1)
                return
            yield line

    def _table_rows(self, report: Report) -> Iterator[RawRow]:
        with self._open() as file:
            reader = csv.reader(file, delimiter=_DELIMITERS[self.suffix], strict=True)
            header = next(reader)
            line = reader.line_num + 1
            while True:
                try:
                    cells = next(reader, None)
                except csv.Error as error:
                    report.fault(self.name, line, f"not a row of a table: {error}", 1)
                    cells = []
                if cells is None:
                    return
                if cells and len(cells) != len(header):
                    reason = "a row with another number of columns than the header"
                    detail = f"{reason}: {len(cells)}, not {len(header)}"
                    report.fault(self.name, line, reason, 1, detail)
                elif cells:  # blank lines are ignored
                    yield self._row(line, dict(zip(header, cells, strict=True)))
                line = reader.line_num + 1

    def _parquet_rows(self, report: Report) -> Iterator[RawRow]:
        """Rows of Parquet are numbered from 1."""
        with parquet.ParquetFile(self.path) as file:
            wanted = [name for name in astuple(self._columns) if name in file.schema_arrow.names]
            number = 1
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=wanted, use_threads=False):
                columns = map(_texts, batch.columns)
                for place, values in enumerate(zip(*columns, strict=True), number):
                    yield self._row(place, dict(zip(batch.schema.names, values, strict=True)))
                number += batch.num_rows


def _text(value: Any) -> str | None:
    """Return a value of JSON as text; null, lists and objects are None."""
    if isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _texts(column: pa.Array) -> list[str | None]:
    """Return the values of a column of Parquet as texts; null and nested values are None."""
    if pa.types.is_nested(column.type):
        return [None] * len(column)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.string())
    # Decoded here, so that bytes that are not UTF-8 are a fault of their row.
    found = column.cast(pa.binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", _ERRORS) for value in found]


def _is_pairs(path: Path) -> bool:
    return path.suffix.lower() in FORMATS


def pair_files(source: str | Path, columns: Columns) -> list[PairFile]:
    """Return the file of pairs at a path, or those of a folder, sorted by name."""
    path = Path(source)
    formats = ", ".join(FORMATS)
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if _is_pairs(file) and file.name[0] != ".")
        if not paths:
            raise CorpusError(f"{path} has no file of pairs; the formats are {formats}")
        return [PairFile(file, file.name, columns) for file in paths]
    if not path.is_file():
        raise CorpusError(f"there is no file or folder {path}")
    if not _is_pairs(path):
        raise CorpusError(f"{path} is not a file of pairs; the formats are {formats}")
    return [PairFile(path, path.name, columns)]


def looks_like_pairs(source: str | Path) -> bool:
    """Whether a path has files of pairs rather than a copy of the Mathematics Dataset."""
    path = Path(source)
    if path.is_file():
        return _is_pairs(path)
    if not path.is_dir():
        return False
    names = [file.name for file in path.iterdir() if _is_pairs(file)]
    return bool(names) and not any("__" in name for name in names)


def split_shares(text: str) -> dict[str, float]:
    """Parse shares of splits, such as `train=0.9,test=0.1`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            shares[name.strip()] = -1.0
    total = sum(shares.values())
    if not all(0 < share <= 1 for share in shares.values()) or abs(total - 1) > 1e-6:
        raise SettingsError(
            "splits must be shares above 0 with a sum of 1, such as train=0.9,test=0.1, "
            f"not {text!r}"
        )
    return shares
