"""Questions and answers of a user, from files to a store.

Files are read twice: first to find tokens, splits, groups and all faults, then to write the rows.
Of all rows, 3% are kept in memory, and 8 bytes of each if they name their splits.
"""

import hashlib
import re
import unicodedata
from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tp_transformer.data.mathematics import corpus
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.pair_options import SHARES, Columns, Tokenisation
from tp_transformer.data.readers import PairFile, RawRow, Report, looks_like_pairs, pair_files
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.task import SPLIT_NAME, TRAIN, Row, Task
from tp_transformer.data.vocabulary import EOS, NO_TEXT, PAD, SOS, Vocabulary
from tp_transformer.data.writer import has_same_store, write_store
from tp_transformer.errors import CorpusError, SettingsError
from tp_transformer.runtime.progress import Counted, Update

_TASK_NAME = re.compile(r"\w[\w-]{0,99}")
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
    described: dict[str, Any] = {"name": Path(source).resolve().name}
    if task is None:
        has_same_store(Path(out), described, overwrite=overwrite)
        if looks_like_pairs(source):
            raise SettingsError(
                f"{source} is not a copy of the Mathematics Dataset; to read questions and "
                "answers of your own, name their task, as in --task NAME"
            )
        if (columns, tokenisation, shares, seed) != (None, "characters", None, 0):
            raise SettingsError(
                "columns, tokenisation, shares and seed are for pairs of your own; name their task"
            )
        return corpus.prepare(source, out, skip_errors=skip_errors, progress=progress)
    if not _TASK_NAME.fullmatch(task) or task == MATHEMATICS.name:
        raise SettingsError(f"a task of your own cannot be called {task!r}; choose another name")
    columns = columns or Columns()
    reading = _Reading(pair_files(source, columns), task, tokenisation, shares, seed)
    described |= {"columns": asdict(columns), **reading.describe()}
    has_same_store(Path(out), described, overwrite=overwrite)
    return _write(reading, described, out, Report(skip_errors), progress)


def _write(
    reading: "_Reading",
    source: dict[str, Any],
    out: str | Path,
    report: Report,
    progress: Update | None,
) -> Store:
    """Write pairs to a store, shuffled within blocks; each block is written by split and group."""
    survey = _Survey(reading, source["name"], report)
    if leaks := survey.still_in_training():
        source["still_in_training"] = leaks
    rng = np.random.default_rng(reading.seed)
    counted = Counted(survey.n_rows, progress)
    with write_store(out, survey.task(), source) as writer:
        for rows in _blocks(reading.rows(Report(skip=True))):
            groups: dict[tuple[str, str], list[Row]] = {}
            for row in (rows[index] for index in rng.permutation(len(rows)).tolist()):
                groups.setdefault((row.split, row.module), []).append(row)
            for key, some in groups.items():
                writer.append(*key, None, [r.question for r in some], [r.answer for r in some])
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


class _Reading:
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
        self._good: set[str] = set()  # characters that are known to be valid
        named = {file.has_splits for file in files}
        if len(named) > 1:
            without = next(file.name for file in files if not file.has_splits)
            raise CorpusError(f"{without} has no column of splits, and other files have one")
        self._is_by_file = named == {False} and len(files) > 1 and shares is None
        self.shares = dict(shares or SHARES) if named == {False} and not self._is_by_file else None
        if self.shares is None and shares is not None:
            raise SettingsError(
                f"{files[0].name} names the splits of its rows; --splits is for files that do not"
            )
        names = self.shares or ([file.stem for file in files] if self._is_by_file else ())
        for name in names:
            if not SPLIT_NAME.fullmatch(name):
                raise SettingsError(f"the split name {name!r} cannot be a file name")

    def describe(self) -> dict[str, Any]:
        """Return the options that determine the rows of the store."""
        return {
            "kind": "pairs",
            "task": self.task,
            "tokenisation": self.tokenisation,
            "splits": "named" if self.shares is None else self.shares,
            "seed": self.seed,
        }

    def rows(self, report: Report) -> Iterator[Row]:
        """Yield the valid rows; report the others."""
        for file in self._files:
            for raw in file.rows(report):
                reason, detail = self._fault(raw, file)
                if reason:
                    report.fault(file.name, raw.line, reason, 1, detail)
                    continue
                assert raw.question is not None  # noqa: S101, for the type checker
                assert raw.answer is not None  # noqa: S101, for the type checker
                split = raw.split if file.has_splits else self._split(raw.question, file)
                group = raw.group if file.has_groups else self.task
                yield Row(split or "", group or "", raw.question, raw.answer)

    def _split(self, question: str, file: PairFile) -> str:
        if self.shares is None:
            return file.stem
        place = _hash(question, b"split", self.seed) / 2**64
        bounds = list(accumulate(self.shares.values()))[:-1]
        return list(self.shares)[bisect(bounds, place)]

    def _fault(self, row: RawRow, file: PairFile) -> tuple[str, str]:
        """Return the kind of a fault and its details; empty if there is none."""
        for noun, text in (("question", row.question), ("answer", row.answer)):
            if reason := self._text_fault(noun, text):
                return reason.partition(": ")[0], reason
        if file.has_splits and not SPLIT_NAME.fullmatch(row.split or ""):
            reason = "a split that cannot be a file name"
            return reason, f"{reason}: {row.split!r}"
        if file.has_groups and not row.group:
            return "empty group", ""
        if row.group and not row.group.isprintable():
            reason = "a group that cannot be printed"
            return reason, f"{reason}: {row.group!r}"
        return "", ""

    def _text_fault(self, noun: str, text: str | None) -> str:
        if text is None:
            return f"{noun} that is missing or not a text"
        if not text:
            return f"empty {noun}"
        if not self._good.issuperset(text):
            for character in text:
                if unicodedata.category(character) in NO_TEXT:
                    is_byte = "\udc80" <= character <= "\udcff"  # see `pair_files`
                    what = "bytes that are not UTF-8" if is_byte else "a character that is not text"
                    return f"{noun} with {what}: {character!r} in {text[:40]!r}"
            self._good.update(text)
        if self.tokenisation == "words":
            words = text.split(" ")
            if words != text.split():
                return f"{noun} whose words are not separated by single blanks: {text[:40]!r}"
            if special := {PAD, SOS, EOS}.intersection(words):
                return f"{noun} with a word that is reserved: {special.pop()}"
        return ""


class _Survey:
    """The tokens, groups and hashes of questions of all rows, by split."""

    def __init__(self, reading: _Reading, source: str, report: Report) -> None:
        self._reading, self.n_rows = reading, 0
        self._tokens: set[str] = set()
        self._groups: dict[str, dict[str, None]] = {}
        self._hashes: dict[tuple[str, str], array[int]] = {}
        for row in reading.rows(report):
            self._add(row)
        if not self.n_rows:
            raise CorpusError(f"{source} has no rows")
        for split in reading.shares or ():
            if split not in self._groups:
                raise SettingsError(
                    f"none of the {self.n_rows:,} rows is in the split {split}; take a larger "
                    "share or another seed"
                )

    def _add(self, row: Row) -> None:
        self.n_rows += 1
        is_words = self._reading.tokenisation == "words"
        for text in (row.question, row.answer):
            self._tokens.update(text.split(" ") if is_words else text)
        groups = self._groups.setdefault(row.split, {})
        groups[row.module] = None
        if len(groups) > _MOST_GROUPS:
            raise CorpusError(
                f"the split {row.split} has more than {_MOST_GROUPS:,} groups, which are scored "
                "separately; name a column with fewer values (--group-column)"
            )
        if self._reading.shares is None:
            hashes = self._hashes.setdefault((row.split, row.module), array("Q"))
            hashes.append(_hash(row.question, b"known"))

    def task(self) -> Task:
        """Return the task of the rows; training comes first."""
        order = sorted(self._groups, key=lambda split: split != TRAIN)
        tokens = (PAD, SOS, EOS, *sorted(self._tokens))
        return Task(
            name=self._reading.task,
            vocabulary=Vocabulary(tokens, self._reading.tokenisation),
            splits={split: tuple(self._groups[split]) for split in order},
        )

    def still_in_training(self) -> dict[str, int]:
        """Return how many test questions occur in training, by split and group."""
        by_key = {key: np.frombuffer(hashes, np.uint64) for key, hashes in self._hashes.items()}
        trained = [hashes for (split, _), hashes in by_key.items() if split == TRAIN]
        known = np.concatenate([np.zeros(0, np.uint64), *trained])
        counts = {
            f"{split}/{group}": int(np.isin(hashes, known).sum())
            for (split, group), hashes in by_key.items()
            if split != TRAIN
        }
        return {name: count for name, count in counts.items() if count}


def _hash(question: str, purpose: bytes, seed: int = 0) -> int:
    """Return a random number of 64 bits that depends only on a question, a purpose and a seed."""
    key = seed.to_bytes(8, "little")
    hashed = hashlib.blake2b(question.encode(), digest_size=8, key=key, person=purpose)
    return int.from_bytes(hashed.digest())
