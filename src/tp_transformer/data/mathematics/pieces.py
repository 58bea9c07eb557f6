"""Pieces of a corpus: some rows of a file, and their validation."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tp_transformer.data.faults import Report
from tp_transformer.data.mathematics.modules import (
    CHARACTERS,
    DIFFICULTIES,
    MAX_ANSWER,
    MAX_QUESTION,
)
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.summary import texts_as_bytes

IS_ALLOWED = np.isin(np.arange(256), np.frombuffer(CHARACTERS.encode(), np.uint8))

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Some rows of a file; `lines` has the line numbers of the questions."""

    questions: pa.StringArray
    answers: pa.StringArray
    lines: range | Places
    answer_below: bool = False  # whether an answer is on the line after its question
    clean: bool = False  # whether all characters are known to be among the 69
    difficulties: pa.StringArray | None = None
    modules: pa.StringArray | None = None  # if the rows name them, not the file

    def keep(self, rows: npt.NDArray[np.bool_]) -> "Piece":
        """Return only the chosen rows."""
        mask = pa.array(rows)
        difficulties, modules = self.difficulties, self.modules
        return Piece(
            self.questions.filter(mask),
            self.answers.filter(mask),
            np.asarray(self.lines)[rows],
            self.answer_below,
            self.clean,
            None if difficulties is None else difficulties.filter(mask),
            None if modules is None else modules.filter(mask),
        )


def check(piece: Piece, name: str, report: Report) -> Piece:
    """Return the valid rows; report the others."""
    faults: list[tuple[int, int, int, str]] = []  # row, column, its line, what is wrong
    columns = (piece.questions, MAX_QUESTION), (piece.answers, MAX_ANSWER)
    for column, (texts, longest) in enumerate(columns):
        offsets, data = texts_as_bytes(texts)
        lengths = offsets[1:] - offsets[:-1]
        fits = lengths.min(initial=1) >= 1 and lengths.max(initial=1) <= longest
        if fits and (piece.clean or MATHEMATICS.vocabulary.knows(data, offsets)):
            continue
        is_foreign = _rows_with_foreign(np.frombuffer(data, np.uint8), offsets)
        for row in np.flatnonzero((lengths < 1) | (lengths > longest) | is_foreign).tolist():
            line = int(piece.lines[row]) + (column and piece.answer_below)
            faults.append((row, column, line, _what_is_wrong(texts[row], column, longest)))
    if not faults:
        return piece
    good = np.ones(len(piece.questions), dtype=bool)
    for row, _, line, problem in sorted(faults):
        reason, _, detail = problem.partition(": ")
        report.fault(name, line, reason, int(good[row]), f"{reason}: {detail}")
        good[row] = False
    return piece.keep(good)


def _rows_with_foreign(data: Bytes, offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return which rows have a character that is not one of the 69."""
    found = np.zeros(len(offsets) - 1, dtype=bool)
    places = np.flatnonzero(~IS_ALLOWED[data])
    found[np.searchsorted(offsets, places, side="right") - 1] = True
    return found


def _what_is_wrong(text: pa.StringScalar, column: int, longest: int) -> str:
    """Return the kind of fault, a colon, and its details."""
    noun = ("question", "answer")[column]
    shown = text.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if not shown:
        return f"empty {noun}: the line is empty"
    foreign = [character for character in shown if character not in CHARACTERS]
    if foreign:
        return f"{noun} with a character outside the 69: {foreign[0]!r} in {_shorten(shown)}"
    return f"{noun} of more than {longest} characters: {len(shown)} in {_shorten(shown)}"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def by_module(piece: Piece, split: str, name: str, report: Report) -> list[tuple[str, Piece]]:
    """Yield the rows of each module that a piece names."""
    found: list[tuple[str, Piece]] = []
    for value, chosen in _by_value(piece, piece.modules):
        if value is not None and MATHEMATICS.has(split, value):
            found.append((value, chosen))
        else:
            line, count = int(chosen.lines[0]), len(chosen.questions)
            reason = (
                "no module in the path or the row"
                if value is None
                else f"{split} has no module {value!r}"
            )
            report.fault(name, line, reason, count)
    return found


def _by_value(piece: Piece, column: pa.StringArray | None) -> list[tuple[str | None, Piece]]:
    """Yield the rows of each value of a column, in order of first occurrence."""
    values = [None] if column is None else pc.unique(column).to_pylist()
    if len(values) == 1:
        return [(values[0], piece)]
    found = []
    for value in values:
        is_value = (
            pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        )
        found.append((value, piece.keep(np.asarray(is_value))))
    return found


def by_difficulty(piece: Piece, name: str, report: Report) -> list[tuple[str | None, Piece]]:
    """Yield the rows of each difficulty of a piece, if it has difficulties."""
    found: list[tuple[str | None, Piece]] = []
    for value, chosen in _by_value(piece, piece.difficulties):
        if value is None or value in DIFFICULTIES:
            found.append((value, chosen))
        else:
            line, count = int(chosen.lines[0]), len(chosen.questions)
            report.fault(name, line, f"unknown difficulty {value!r}", count)
    return found
