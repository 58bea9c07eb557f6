"""Questions and answers of a user, from files to a store.

Files are read twice: first to find tokens, splits, groups and all faults, then to write the rows.
Of all rows, 3% are kept in memory, and 8 bytes of each if they name their splits. A fault is
reported with the file and the line; rows of Parquet are numbered from 1.
"""

import csv
import hashlib
import json
import re
import unicodedata
from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tp_transformer.data.mathematics import corpus
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.pair_options import SHARES, Columns, Tokenisation
from tp_transformer.data.readers import (
    MAX_LINE,
    Report,
    SourceFile,
    in_one_line,
    read_alternating,
    read_blocks,
    read_json_lines,
)
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.task import NAME, TRAIN, Row, Task
from tp_transformer.data.vocabulary import EOS, NO_TEXT, PAD, SOS, Vocabulary
from tp_transformer.data.writer import has_same_store, write_store
from tp_transformer.errors import CorpusError, SettingsError
from tp_transformer.runtime.progress import Counted, Update
from tp_transformer.settings import nearest

PAIR_FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_ROWS_PER_BATCH = 2**14
# Bytes that are not UTF-8 become surrogates, which no valid text contains; they are reported as
# faults of their row.
_ERRORS = "surrogateescape"
# Numbers are texts as they are written: 1.50 is not 1.5.
_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=lambda _: None)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_MOST_GROUPS = 1000
_BLOCK = 2**16  # rows that are sorted by split and group, and shuffled, together
# Training holds out the last rows of a module for validation, at most 2% of them. A random share of
# the rows is therefore written last, so that the held-out rows are a random sample of a long file
# too.
_LAST_SHARE = 0.03


def prepare(  # noqa: PLR0913, the options of the command
    source: str | Path,
    out: str | Path,
    *,
    task: str | None = None,
    columns: Columns | None = None,
    tokenisation: Tokenisation = "characters",
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
    skip_errors: bool = False,
    overwrite: bool = False,
    progress: Update | None = None,
) -> Store:
    """Read questions and answers into the store `out`.

    An earlier store of a source of the same name, made with the same options, is replaced; another
    store only if `overwrite` is true.

    Args:
        source: with `task`, a file of JSON lines, CSV, TSV, Parquet, or text of alternating lines,
            or a folder of such files; without it, the Mathematics Dataset: the v1.0 archive, its
            folder, or the Hugging Face copy
        out: folder of the store
        task: name of the task of pairs of your own, to which the options below apply
        columns: names of the columns
        tokenisation: whether tokens are characters, or words separated by blanks
        shares: shares of the splits, if rows do not name their splits; equal questions are in the
            same split
        seed: seed of the splits and of the order of rows
        skip_errors: skip invalid rows and list them in the store, instead of raising
        overwrite: replace a store that was made from another source or with other options
        progress: called with the number of bytes (of pairs: rows) read and the total number
    """
    description: dict[str, Any] = {"name": Path(source).resolve().name}
    if task is None:
        has_same_store(Path(out), description, overwrite=overwrite)
        if _looks_like_pairs(Path(source)):
            raise SettingsError(
                f"{source} is not a copy of the Mathematics Dataset; to read questions and "
                "answers of your own, name their task, as in --task NAME"
            )
        if (columns, tokenisation, shares, seed) != (None, "characters", None, 0):
            raise SettingsError(
                "columns, tokenisation, shares and seed are for pairs of your own; name their task"
            )
        return corpus.prepare(source, out, skip_errors=skip_errors, progress=progress)
    if not NAME.fullmatch(task) or task == MATHEMATICS.name:
        raise SettingsError(f"a task of your own cannot be called {task!r}; choose another name")
    columns = columns or Columns()
    reader = _PairReader(_pair_files(Path(source), columns), task, tokenisation, shares, seed)
    description |= {
        "columns": asdict(columns),
        "kind": "pairs",
        "task": task,
        "tokenisation": tokenisation,
        "splits": "named" if reader.shares is None else reader.shares,
        "seed": seed,
    }
    has_same_store(Path(out), description, overwrite=overwrite)
    return _write(reader, description, out, Report(skip_errors), progress)


def _write(
    reader: "_PairReader",
    source: dict[str, Any],
    out: str | Path,
    report: Report,
    progress: Update | None,
) -> Store:
    """Write pairs to a store, shuffled within blocks; each block is written by split and group."""
    survey = _Survey(reader, source["name"], report)
    if leaks := survey.still_in_training():
        source["still_in_training"] = leaks
    rng = np.random.default_rng(reader.seed)
    counted = Counted(survey.n_rows, progress)
    with write_store(out, survey.task(), source) as writer:
        for rows in _blocks(reader.rows(Report(skip=True))):
            groups: dict[tuple[str, str], list[Row]] = {}
            for row in (rows[index] for index in rng.permutation(len(rows)).tolist()):
                groups.setdefault((row.split, row.module), []).append(row)
            for key, group in groups.items():
                writer.append(*key, None, [r.question for r in group], [r.answer for r in group])
            counted.add(len(rows))
        writer.skipped = list(report.entries.values())
    return open_store(out)


def _blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in blocks; the last one is a random share of all rows."""
    block: list[Row] = []
    last: list[Row] = []
    for row in rows:
        is_last = _hash(row.question, b"last") < _LAST_SHARE * 2**64
        (last if is_last else block).append(row)
        if len(block) == _BLOCK:
            yield block
            block = []
    yield block
    yield last


def _is_pair_file(path: Path) -> bool:
    return path.suffix.lower() in PAIR_FORMATS


def _looks_like_pairs(path: Path) -> bool:
    """Whether a path has files of pairs rather than a copy of the Mathematics Dataset."""
    if not path.is_dir():
        return path.is_file() and _is_pair_file(path)
    names = [file.name for file in path.iterdir() if _is_pair_file(file)]
    return bool(names) and not any("__" in name for name in names)


def _pair_files(path: Path, columns: Columns) -> "list[PairFile]":
    """Return the file of pairs at a path, or those of a folder, sorted by name."""
    formats = ", ".join(PAIR_FORMATS)
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if _is_pair_file(f) and f.name[0] != ".")
        if not files:
            raise CorpusError(f"{path} has no file of pairs; the formats are {formats}")
        return [PairFile(file, columns) for file in files]
    if not path.is_file():
        raise CorpusError(f"there is no file or folder {path}")
    if not _is_pair_file(path):
        raise CorpusError(f"{path} is not a file of pairs; the formats are {formats}")
    return [PairFile(path, columns)]


class _RawRow(NamedTuple):
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

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path, self.name, self._columns = path, path.name, columns
        self._suffix = path.suffix.lower()
        try:
            names = self._column_names()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise CorpusError(f"{self.name}: cannot be read: {in_one_line(error)}") from error
        if any("\udc80" <= character <= "\udcff" for character in "".join(names or ())):
            raise CorpusError(f"{self.name} is not a text in UTF-8")
        self._check_columns(names)
        self.has_splits = names is not None and columns.split in names
        self.has_groups = names is not None and columns.group in names

    def _column_names(self) -> list[str] | None:
        """Return the names of the columns; None if the format has none."""
        if self._suffix == ".txt":
            return None
        if self._suffix == ".parquet":
            with self.path.open("rb") as opened, parquet.ParquetFile(opened) as file:
                return list(file.schema_arrow.names)
        with self._open() as text:
            if self._suffix in _DELIMITERS:
                return next(csv.reader(text, delimiter=_DELIMITERS[self._suffix]), [])
            line = next(filter(str.strip, iter(lambda: text.readline(MAX_LINE), "")), "{}")
            if not isinstance(first := json.loads(line), dict):
                raise ValueError("its first line is not a JSON object")
            return list(first)

    def _check_columns(self, names: list[str] | None) -> None:
        """Raise if a required column is absent, or if there are two of the same name."""
        for column in fields(Columns):
            name, noun = getattr(self._columns, column.name), column.name
            if names is None:
                if name != column.default:
                    raise SettingsError(f"{self.name} is text without columns such as {name!r}")
                continue
            is_required = noun in ("question", "answer") or name != column.default
            if is_required and name not in names:
                there = ", ".join(map(repr, names)) or "none"
                raise CorpusError(
                    f"{self.name} has no column {name!r}{nearest(name, names)}; name the column of "
                    f"{noun}s with --{noun}-column: the columns are {there}"
                )
            if names.count(name) > 1:
                raise CorpusError(f"{self.name} has {names.count(name)} columns {name!r}")

    @property
    def stem(self) -> str:
        """The name of the file without its suffix and the number of a shard."""
        return _SHARD.sub("", self.path.stem)

    def rows(self, report: Report) -> Iterator[_RawRow]:
        """Yield the rows; report those that cannot be read."""
        readers = {".parquet": self._parquet_rows, ".txt": self._text_rows}
        readers |= dict.fromkeys(_DELIMITERS, self._table_rows)
        try:
            yield from readers.get(self._suffix, self._json_rows)(report)
        except (OSError, pa.ArrowException) as error:
            report.fault(self.name, None, f"cannot be read: {in_one_line(error)}", 0)

    def _open(self) -> TextIO:
        return self.path.open(encoding="utf-8-sig", errors=_ERRORS, newline="")

    def _row(self, line: int, values: Mapping[str, Any]) -> _RawRow:
        return _RawRow(line, *(values.get(name) for name in astuple(self._columns)))

    def _text_rows(self, report: Report) -> Iterator[_RawRow]:
        for batch in read_alternating(SourceFile(self.name), read_blocks(self.path), report):
            texts = (_decoded(batch.column(name)) for name in ("question", "answer"))
            lines = batch.column("question_line").to_pylist()
            for line, question, answer in zip(lines, *texts, strict=True):
                yield _RawRow(line, question, answer, None, None)

    def _json_rows(self, report: Report) -> Iterator[_RawRow]:
        expected = (self._columns.split, self.has_splits), (self._columns.group, self.has_groups)
        absent = [name for name, is_there in expected if not is_there]
        file, blocks, fault = SourceFile(self.name), read_blocks(self.path), "not a JSON object"
        for line, values in read_json_lines(file, blocks, report, _json_object, fault):
            if late := next((name for name in absent if name in values), None):
                reason = "a column that the first row lacks"
                report.fault(self.name, line, reason, 1, f"{reason}: {late!r}")
            else:
                yield self._row(line, values)

    def _table_rows(self, report: Report) -> Iterator[_RawRow]:
        with self._open() as file:
            reader = csv.reader(file, delimiter=_DELIMITERS[self._suffix], strict=True)
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

    def _parquet_rows(self, report: Report) -> Iterator[_RawRow]:
        with self.path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            names = [name for name in astuple(self._columns) if name in file.schema_arrow.names]
            first = 1
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=names, use_threads=False):
                lines = np.arange(first, first + batch.num_rows)
                first += batch.num_rows
                for noun in ("question", "answer"):
                    # At once, because millions of nulls take a few bytes.
                    column = batch.column(getattr(self._columns, noun))
                    if pa.types.is_nested(column.type):
                        column = pa.nulls(len(column))
                    if n_missing := column.null_count:
                        is_there = np.asarray(pc.is_valid(column))
                        reason = f"{noun} that is missing or not a text"
                        report.fault(self.name, int(lines[~is_there][0]), reason, n_missing)
                        batch, lines = batch.filter(pa.array(is_there)), lines[is_there]
                columns = map(_decoded, batch.columns)
                for line, values in zip(lines.tolist(), zip(*columns, strict=True), strict=True):
                    yield self._row(line, dict(zip(batch.schema.names, values, strict=True)))


def _json_object(line: bytes) -> dict[str, str | None] | None:
    """Return the values of an object as texts; null, lists and objects become None."""
    text = line.decode("utf-8", _ERRORS)
    if not text.strip():
        return None  # as in tables
    values = _JSON.decode(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return {name: _as_text(value) for name, value in values.items()}


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _decoded(column: pa.Array) -> list[str | None]:
    """Return the values of a column as texts; null and nested values become None."""
    if pa.types.is_nested(column.type):
        return [None] * len(column)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.string())
    # Decoded here, so that bytes that are not UTF-8 are a fault of their row.
    values = column.cast(pa.binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", _ERRORS) for value in values]


class _PairReader:
    """The checked rows of files; `shares` is None if the rows or the files name the splits."""

    def __init__(
        self,
        files: Sequence[PairFile],
        task: str,
        tokenisation: Tokenisation,
        shares: Mapping[str, float] | None,
        seed: int,
    ) -> None:
        self._files, self.task, self.tokenisation, self.seed = files, task, tokenisation, seed
        self._valid: set[str] = set()  # characters that are known to be valid
        named = {file.has_splits for file in files}
        if len(named) > 1:
            without = next(file.name for file in files if not file.has_splits)
            raise CorpusError(f"{without} has no column of splits, and other files have one")
        is_by_file = named == {False} and len(files) > 1 and shares is None
        self.shares = dict(shares or SHARES) if named == {False} and not is_by_file else None
        if self.shares is None and shares is not None:
            raise SettingsError(
                f"{files[0].name} names the splits of its rows; --splits is for files that do not"
            )
        for name in self.shares or ([file.stem for file in files] if is_by_file else ()):
            if not NAME.fullmatch(name):
                raise SettingsError(f"the split name {name!r} cannot be a file name")

    def rows(self, report: Report) -> Iterator[Row]:
        """Yield the valid rows; report the others."""
        for file in self._files:
            for raw in file.rows(report):
                if detail := self._fault(raw, file):
                    reason = detail.partition(": ")[0]
                    report.fault(file.name, raw.line, reason, 1, detail)
                    continue
                question, answer = raw.question or "", raw.answer or ""  # neither is empty
                split = raw.split if file.has_splits else self._split(question, file)
                group = raw.group if file.has_groups else self.task
                yield Row(split or "", group or "", question, answer)

    def _split(self, question: str, file: PairFile) -> str:
        if self.shares is None:
            return file.stem
        share = _hash(question, b"split", self.seed) / 2**64
        bounds = list(accumulate(self.shares.values()))[:-1]
        return list(self.shares)[bisect(bounds, share)]

    def _fault(self, row: _RawRow, file: PairFile) -> str:
        """Describe the fault of a row, with details after a colon; empty if there is none."""
        for noun, text in (("question", row.question), ("answer", row.answer)):
            if fault := self._text_fault(noun, text):
                return fault
        if file.has_splits and not NAME.fullmatch(row.split or ""):
            return f"a split that cannot be a file name: {row.split!r}"
        if file.has_groups and not row.group:
            return "empty group"
        if row.group and not row.group.isprintable():
            return f"a group that cannot be printed: {row.group!r}"
        return ""

    def _text_fault(self, noun: str, text: str | None) -> str:
        if text is None:
            return f"{noun} that is missing or not a text"
        if not text:
            return f"empty {noun}"
        if not self._valid.issuperset(text):
            for character in text:
                if unicodedata.category(character) in NO_TEXT:
                    is_byte = "\udc80" <= character <= "\udcff"  # see `_ERRORS`
                    what = "bytes that are not UTF-8" if is_byte else "a character that is not text"
                    return f"{noun} with {what}: {character!r} in {text[:40]!r}"
            self._valid.update(text)
        if self.tokenisation == "words":
            words = text.split(" ")
            if words != text.split():
                return f"{noun} whose words are not separated by single blanks: {text[:40]!r}"
            if special := {PAD, SOS, EOS}.intersection(words):
                return f"{noun} with a word that is reserved: {special.pop()}"
        return ""


class _Survey:
    """The tokens, groups and hashes of questions of all rows, by split."""

    def __init__(self, reader: _PairReader, source: str, report: Report) -> None:
        self._reader, self.n_rows = reader, 0
        self._tokens: set[str] = set()
        self._groups: dict[str, dict[str, None]] = {}
        self._hashes: dict[tuple[str, str], array[int]] = {}
        for row in reader.rows(report):
            self._add(row)
        if not self.n_rows:
            raise CorpusError(f"{source} has no rows")
        for split in reader.shares or ():
            if split not in self._groups:
                raise SettingsError(
                    f"none of the {self.n_rows:,} rows is in the split {split}; take a larger "
                    "share or another seed"
                )

    def _add(self, row: Row) -> None:
        self.n_rows += 1
        is_words = self._reader.tokenisation == "words"
        for text in (row.question, row.answer):
            self._tokens.update(text.split(" ") if is_words else text)
        groups = self._groups.setdefault(row.split, {})
        groups[row.module] = None
        if len(groups) > _MOST_GROUPS:
            raise CorpusError(
                f"the split {row.split} has more than {_MOST_GROUPS:,} groups, which are scored "
                "separately; name a column with fewer values (--group-column)"
            )
        if self._reader.shares is None:
            hashes = self._hashes.setdefault((row.split, row.module), array("Q"))
            hashes.append(_hash(row.question, b"known"))

    def task(self) -> Task:
        """Return the task of the rows; training comes first."""
        order = sorted(self._groups, key=lambda split: split != TRAIN)
        tokens = (PAD, SOS, EOS, *sorted(self._tokens))
        return Task(
            name=self._reader.task,
            vocabulary=Vocabulary(tokens, self._reader.tokenisation),
            splits={split: tuple(self._groups[split]) for split in order},
        )

    def still_in_training(self) -> dict[str, int]:
        """Return how many test questions occur in training, by split and group."""
        by_key = {key: np.frombuffer(hashes, np.uint64) for key, hashes in self._hashes.items()}
        train = [hashes for (split, _), hashes in by_key.items() if split == TRAIN]
        in_training = np.concatenate([np.zeros(0, np.uint64), *train])
        counts = {
            f"{split}/{group}": int(np.isin(hashes, in_training).sum())
            for (split, group), hashes in by_key.items()
            if split != TRAIN
        }
        return {name: count for name, count in counts.items() if count}


def _hash(question: str, purpose: bytes, seed: int = 0) -> int:
    """Return a random number of 64 bits that depends only on a question, a purpose and a seed."""
    key = seed.to_bytes(8, "little")
    hashed = hashlib.blake2b(question.encode(), digest_size=8, key=key, person=purpose)
    return int.from_bytes(hashed.digest())
