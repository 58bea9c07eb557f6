"""The symbols of the Mathematics Dataset: text to ids and back, for many texts at once.

The published data holds exactly 69 characters; with padding, start and end they make the 72
symbols of the paper (section 3). A model trained elsewhere may number its symbols differently,
so the order belongs to the model and is saved with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tp_transformer.foundation.errors import TextError

PAD, SOS, EOS = "<pad>", "<sos>", "<eos>"
CHARACTERS = " !'()*+,-./0123456789:<=>?ACDEFGHILMPRSTWabcdefghijklmnopqrstuvwxyz{}"

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Ids
    offsets: Ids

    @property
    def lengths(self) -> Ids:
        """How many ids each row has."""
        return self.offsets[1:] - self.offsets[:-1]

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> "Ragged":
        """The chosen rows, in the order chosen."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.ids[np.arange(offsets[-1]) + shift], offsets)

    def between(self, start: int, end: int) -> "Ragged":
        """Consecutive rows; nothing is copied."""
        offsets = self.offsets[start : end + 1]
        return Ragged(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def padded(self, pad: int) -> Ids:
        """The rows as one rectangle, filled up with `pad` on the right."""
        lengths = self.lengths
        width = int(lengths.max(initial=0))
        rectangle = np.full((len(lengths), width), pad, dtype=np.int64)
        rectangle[np.arange(width) < lengths[:, None]] = self.ids
        return rectangle


@dataclass(frozen=True)
class Vocabulary:
    """Symbols in the order of their ids: single characters, and special ones in angle brackets."""

    symbols: tuple[str, ...] = (PAD, SOS, EOS, *CHARACTERS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", tuple(self.symbols))
        for symbol in self.symbols:
            is_special = len(symbol) > 2 and symbol[0] + symbol[-1] == "<>"
            if not symbol.isprintable() or not (len(symbol) == 1 or is_special):
                raise ValueError(f"the symbol {symbol!r} is neither a character nor like <pad>")
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError("a vocabulary must not list a symbol twice")
        missing = {PAD, SOS, EOS} - set(self.symbols)
        if missing:
            raise ValueError(f"a vocabulary must list {', '.join(sorted(missing))}")

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def pad(self) -> int:
        """The id of padding."""
        return self.symbols.index(PAD)

    @cached_property
    def sos(self) -> int:
        """The id that starts every sequence."""
        return self.symbols.index(SOS)

    @cached_property
    def eos(self) -> int:
        """The id that ends every sequence."""
        return self.symbols.index(EOS)

    def encode(self, texts: Sequence[str], noun: str = "text", first: int = 1) -> Ragged:
        """The ids of each text, between start and end symbols.

        Errors call a text by `noun` and by its number, counted from `first`.
        """
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        characters = _code_points("".join(texts))
        ids = np.where(
            characters < len(self._id_of_code),
            self._id_of_code[np.minimum(characters, len(self._id_of_code) - 1)],
            -1,
        )
        if (ids < 0).any():
            row, column = _row_and_column(np.cumsum(lengths), int(np.argmax(ids < 0)))
            self._refuse_character(f"{noun} {row + first}", texts[row], column)
        offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
        framed = np.empty(offsets[-1], dtype=np.int64)
        is_text = np.ones(len(framed), dtype=bool)
        is_text[offsets[:-1]] = is_text[offsets[1:] - 1] = False
        framed[offsets[:-1]] = self.sos
        framed[offsets[1:] - 1] = self.eos
        framed[is_text] = ids
        return Ragged(framed, offsets)

    def encode_spans(self, data: npt.NDArray[np.uint8], starts: Ids, lengths: Ids) -> Ragged:
        """The ids of texts that lie as ASCII in `data`, each between start and end symbols.

        Text i is `data[starts[i]:starts[i] + lengths[i]]`, with at least one byte before and one
        behind it in `data`. Nothing but the bytes of the texts is read, so `data` may be a mapped
        file.
        """
        offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
        # The frame is read along with the text, one byte before and one behind it, and then
        # overwritten: one gather instead of a gather and a scatter.
        places = np.repeat(starts - 1 - offsets[:-1], lengths + 2)
        places += np.arange(offsets[-1])
        ids = self._id_of_byte[data[places]]
        ids[offsets[:-1]] = self.sos
        ids[offsets[1:] - 1] = self.eos
        if ids.min(initial=0) < 0:
            row, column = _row_and_column(offsets[1:], int(np.argmax(ids < 0)))
            text = data[starts[row] : starts[row] + lengths[row]].tobytes().decode("latin-1")
            self._refuse_character(f"text {row + 1}", text, column - 1)
        return Ragged(ids, offsets)

    def decode(self, ids: npt.NDArray[Any]) -> list[str]:
        """The text of each row up to its end symbol, or the whole row if there is none.

        A special symbol inside a text is spelled out (`<pad>`), so that an answer that holds one
        is never mistaken for the answer without it.
        """
        if ids.size == 0:
            return [""] * len(ids)
        ended = ids == self.eos
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1), ids.shape[1])
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        codes = self._code_of_id[np.minimum(ids, len(self.symbols))]
        characters = codes[inside].astype("<u4").tobytes().decode("utf-32-le")
        ends = np.cumsum(lengths)
        texts = [characters[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        for row in np.flatnonzero(((codes == 0) & inside).any(axis=1)):
            texts[row] = "".join(self._spell(i) for i in ids[row, : lengths[row]])
        return texts

    def _spell(self, index: int) -> str:
        return self.symbols[index] if index < len(self.symbols) else f"<{index}>"

    @cached_property
    def _id_of_code(self) -> Ids:
        """The id at each code point, -1 where there is none."""
        codes = self._code_of_id[: len(self.symbols)]
        table = np.full(int(codes.max()) + 2, -1, dtype=np.int64)
        table[codes] = np.arange(len(codes))
        table[0] = -1
        return table

    @cached_property
    def _id_of_byte(self) -> Ids:
        """The id of each ASCII character, -1 for every byte that is no symbol."""
        table = np.full(256, -1, dtype=np.int64)
        known = self._id_of_code[:128]
        table[: len(known)] = known
        return table

    @cached_property
    def _code_of_id(self) -> Ids:
        """The code point of each id; 0 for special symbols, and last for ids that have none."""
        codes = [ord(symbol) if len(symbol) == 1 else 0 for symbol in self.symbols]
        return np.array([*codes, 0], dtype=np.int64)

    def _refuse_character(self, which: str, text: str, column: int) -> None:
        raise TextError(
            f"{which}: character {text[column]!r} at position {column + 1} is not "
            f"one that the model knows; it knows {''.join(s for s in self.symbols if len(s) == 1)}"
        )


def _code_points(text: str) -> npt.NDArray[np.int64]:
    # A lone surrogate, which a terminal can produce, is a code point like any other here.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)


def _row_and_column(ends: Ids, position: int) -> tuple[int, int]:
    """Which row of a ragged array, and where in it, a position is; `ends` are the rows' ends."""
    row = int(np.searchsorted(ends, position, side="right"))
    return row, position - int(ends[row - 1] if row else 0)
