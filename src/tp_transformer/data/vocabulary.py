"""Vocabularies: conversion between texts and token ids, for many texts at once.

A token is a character or, in a vocabulary of words, a word; the words of a text are separated by
single blanks. A model trained elsewhere may number its tokens differently, so the order belongs to
the model and is saved with it.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tp_transformer.errors import TextError

PAD, SOS, EOS = "<pad>", "<sos>", "<eos>"

_BLANK = ord(" ")
FEW_ROWS = 16  # with fewer rows, decoding one by one is faster
_MOST_SHOWN = 100  # number of tokens that an error message lists
# Unicode categories that no token has: control, surrogate, unassigned, line separators.
NO_TEXT = {"Cc", "Cs", "Cn", "Zl", "Zp"}

Ids = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, concatenated: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Ids
    offsets: Ids

    @property
    def lengths(self) -> Ids:
        """The number of ids of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    def take(self, rows: Integers) -> "Ragged":
        """Return the chosen rows, in the given order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.ids[np.arange(offsets[-1]) + shift], offsets)

    def between(self, start: int, end: int) -> "Ragged":
        """Return consecutive rows; nothing is copied."""
        offsets = self.offsets[start : end + 1]
        return Ragged(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def padded(self, pad: int) -> Ids:
        """Return the rows as a rectangle, padded on the right."""
        lengths = self.lengths
        width = int(lengths.max(initial=0))
        rectangle = np.full((len(lengths), width), pad, dtype=np.int64)
        rectangle[np.arange(width) < lengths[:, None]] = self.ids
        return rectangle


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids.

    Attributes:
        tokens: characters, or words without blanks; and special ones in angle brackets, of which
            `<pad>`, `<sos>` and `<eos>` must be there
        tokenisation: whether a token of a text is a character, or a word between blanks
    """

    tokens: tuple[str, ...]
    tokenisation: Literal["characters", "words"] = "characters"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if self.tokenisation not in ("characters", "words"):
            raise ValueError(f"tokens are characters or words, not {self.tokenisation!r}")
        for token in self.tokens:
            if not self._is_special(token) and not self._is_token(token):
                kind = "word without blanks" if self.is_words else "character"
                raise ValueError(f"the token {token!r} is neither a {kind} nor like <pad>")
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("a vocabulary must not list a token twice")
        missing = {PAD, SOS, EOS} - set(self.tokens)
        if missing:
            raise ValueError(f"a vocabulary must list {', '.join(sorted(missing))}")

    def _is_special(self, token: str) -> bool:
        """Whether a token cannot occur in a text; a word may have angle brackets."""
        if self.is_words:
            return token in (PAD, SOS, EOS)
        return len(token) > 2 and token[0] + token[-1] == "<>" and token.isprintable()

    def _is_token(self, token: str) -> bool:
        is_text = not any(unicodedata.category(character) in NO_TEXT for character in token)
        return is_text and (token.split() == [token] if self.is_words else len(token) == 1)

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenisation: Literal["characters", "words"] = "characters"
    ) -> "Vocabulary":
        """Return the vocabulary of some texts, sorted by code point."""
        if tokenisation == "words" and isinstance(texts, str):
            raise ValueError("a vocabulary of words needs a list of texts, not one text")
        tokens = (text.split(" ") if tokenisation == "words" else text for text in texts)
        return cls((PAD, SOS, EOS, *sorted(set().union(*tokens))), tokenisation)

    @classmethod
    def from_json(cls, values: Any) -> "Vocabulary":
        """Return what `to_json` converted; raise a ValueError for invalid values."""
        tokenisation = "characters"
        if isinstance(values, dict) and values.keys() == {"tokenisation", "tokens"}:
            tokenisation, values = values["tokenisation"], values["tokens"]
        if not isinstance(values, list) or not all(isinstance(token, str) for token in values):
            raise ValueError("a vocabulary must be a list of tokens")
        return cls(tuple(values), tokenisation)  # type: ignore[arg-type]

    def to_json(self) -> Any:
        """Return the values to write as JSON; characters are a list, in the order of their ids."""
        tokens = list(self.tokens)
        return {"tokenisation": self.tokenisation, "tokens": tokens} if self.is_words else tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def pad(self) -> int:
        """The id of the padding token."""
        return self.tokens.index(PAD)

    @cached_property
    def sos(self) -> int:
        """The id of the start token."""
        return self.tokens.index(SOS)

    @cached_property
    def eos(self) -> int:
        """The id of the end token."""
        return self.tokens.index(EOS)

    @cached_property
    def is_words(self) -> bool:
        """Whether the tokens are words."""
        return self.tokenisation == "words"

    @cached_property
    def is_ascii(self) -> bool:
        """Whether each token is one byte of a text."""
        return not self.is_words and int(self._code_of_id.max()) < 128

    @cached_property
    def bytes_per_token(self) -> int:
        """The maximum number of bytes of a token, including the blank after a word."""
        return max(map(len, map(str.encode, self._id_of_token)), default=1) + self.is_words

    def encode(self, texts: Sequence[str], noun: str = "text", first: int = 1) -> Ragged:
        """Return the ids of each text, between start and end tokens.

        Errors name a text by `noun` and by its number, counted from `first`.
        """
        if self.is_words:
            ids = self._word_ids(" ".join(filter(None, texts)))
            counts = [text.count(" ") + 1 if text else 0 for text in texts]
        else:
            ids, counts = self._character_ids("".join(texts)), [len(text) for text in texts]
        lengths = np.array(counts, dtype=np.int64)
        if (ids < 0).any():
            ends, index = np.cumsum(lengths), int(np.argmax(ids < 0))
            row = int(np.searchsorted(ends, index, side="right"))
            column = index - int(ends[row] - lengths[row])
            self._raise_unknown(f"{noun} {row + first}", texts[row], column)
        offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
        framed = np.empty(offsets[-1], dtype=np.int64)
        is_text = np.ones(len(framed), dtype=bool)
        is_text[offsets[:-1]] = is_text[offsets[1:] - 1] = False
        framed[offsets[:-1]], framed[offsets[1:] - 1] = self.sos, self.eos
        framed[is_text] = ids
        return Ragged(framed, offsets)

    def encode_spans(self, data: npt.NDArray[np.uint8], starts: Ids, lengths: Ids) -> Ragged:
        """Return the ids of texts in UTF-8 data, each between start and end tokens.

        Text i is `data[starts[i]:starts[i] + lengths[i]]`, with at least one more byte of `data`
        before and after it. Only the bytes of the texts are read, so `data` may be a memory-mapped
        file.
        """
        if self.is_ascii:
            offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
            # One byte before and one after each text are read too, and replaced by the start and
            # end tokens: one gather instead of a gather and a scatter.
            positions = np.repeat(starts - 1 - offsets[:-1], lengths + 2)
            positions += np.arange(offsets[-1])
            ids = self._id_of_byte[data[positions]]
            ids[offsets[:-1]] = self.sos
            ids[offsets[1:] - 1] = self.eos
            if ids.min(initial=0) >= 0:
                return Ragged(ids, offsets)
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        texts = [data[i:j].tobytes().decode("utf-8", "replace") for i, j in spans]
        return self.encode(texts)  # raises if a text has an unknown token

    def count(self, data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> Ids:
        """Return the number of tokens of texts in `data`, as in `encode_spans`; none is empty."""
        if self.is_ascii or not len(lengths):
            return lengths.astype(np.int64, copy=False)
        # The bytes of all texts, with a blank after each if tokens are words.
        n_bytes = lengths + self.is_words
        offsets = np.concatenate([[0], np.cumsum(n_bytes)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], n_bytes)
        is_text = inside < np.repeat(lengths, n_bytes)
        content = np.full(offsets[-1], _BLANK, np.uint8)
        content[is_text] = data[(inside + np.repeat(starts, n_bytes))[is_text]]
        # Count the blanks after words, or the first bytes of characters, which are not 10xxxxxx.
        is_token = content == _BLANK if self.is_words else (content & 0xC0) != 0x80
        counts: Ids = np.add.reduceat(is_token, offsets[:-1], dtype=np.int64)
        return counts

    def knows(self, data: bytes | memoryview, offsets: Integers) -> bool:
        """Whether concatenated UTF-8 texts have only known tokens; no text is empty."""
        if self.is_ascii:
            # `translate` removes known bytes in 0.6 ns per byte; a lookup in numpy takes 3 ns.
            return not bytes(data).translate(None, self._alphabet)
        if not self.is_words:
            return set(str(data, "utf-8", "replace")) <= self._id_of_token.keys()
        starts, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        texts = (str(data[i:j], "utf-8", "replace") for i, j in zip(starts, ends, strict=True))
        return set().union(*(text.split(" ") for text in texts)) <= self._id_of_token.keys()

    def _word_ids(self, text: str) -> Ids:
        """Return the id of each word; -1 if it is unknown."""
        words = text.split(" ") if text else []
        return np.fromiter(map(self._id_of_token.get, words, repeat(-1)), np.int64, len(words))

    def _character_ids(self, text: str) -> Ids:
        """Return the id of each character; -1 if it is unknown."""
        # A lone surrogate, which a terminal can produce, is treated like any other code point.
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
        last = len(self._id_of_code) - 1
        return np.where(codes <= last, self._id_of_code[np.minimum(codes, last)], -1)

    def decode(self, ids: npt.NDArray[Any]) -> list[str]:
        """Return the text of each row up to its end token, or of the whole row if it has none.

        A special token inside a text is written by its name (`<pad>`), so that an answer that
        contains one never equals the same answer without it.
        """
        if self.is_words or len(ids) < FEW_ROWS or not ids.size:
            return [self._text(row) for row in ids.tolist()]
        ended = ids == self.eos
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1), ids.shape[1])
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        codes = self._code_of_id[np.minimum(ids, len(self.tokens))]
        characters = codes[inside].astype("<u4").tobytes().decode("utf-32-le")
        ends = np.cumsum(lengths)
        texts = [characters[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        for row in np.flatnonzero(((codes == 0) & inside).any(axis=1)):
            texts[row] = self._text(ids[row].tolist())
        return texts

    def _text(self, row: list[int]) -> str:
        """Return the text of a row of ids, token by token."""
        length = row.index(self.eos) if self.eos in row else len(row)
        return (" " if self.is_words else "").join(map(self.spell, row[:length]))

    def spell(self, index: int) -> str:
        """Return the token of an id, or the id in angle brackets if there is none."""
        return self.tokens[index] if index < len(self.tokens) else f"<{index}>"

    @cached_property
    def _id_of_token(self) -> dict[str, int]:
        """The id of each token that can occur in a text."""
        return {t: i for i, t in enumerate(self.tokens) if not self._is_special(t)}

    @cached_property
    def _alphabet(self) -> bytes:
        return "".join(self._id_of_token).encode()

    @cached_property
    def _id_of_code(self) -> Ids:
        """The id of each code point; -1 if there is none."""
        codes = self._code_of_id[: len(self.tokens)]
        table = np.full(int(codes.max()) + 2, -1, dtype=np.int64)
        table[codes] = np.arange(len(codes))
        table[0] = -1
        return table

    @cached_property
    def _id_of_byte(self) -> Ids:
        """The id of each ASCII character; -1 for bytes that are not tokens."""
        table = np.full(256, -1, dtype=np.int64)
        known = self._id_of_code[:128]
        table[: len(known)] = known
        return table

    @cached_property
    def _code_of_id(self) -> Ids:
        """The code point of each id; 0 for special tokens, and one more 0 for unknown ids."""
        codes = [ord(token) if len(token) == 1 else 0 for token in self.tokens]
        return np.array([*codes, 0], dtype=np.int64)

    def _raise_unknown(self, which: str, text: str, column: int) -> None:
        """Raise an error about the unknown token at a position of a text."""
        token, noun = text[column], "character"
        if self.is_words:
            token, noun = text.split(" ")[column], "word"
        if not token:
            raise TextError(
                f"{which}: single blanks separate words, but word {column + 1} is empty"
            )
        known = list(self._id_of_token)
        listed = (" " if self.is_words else "").join(known[:_MOST_SHOWN])
        more = f" and {len(known) - _MOST_SHOWN:,} more" if len(known) > _MOST_SHOWN else ""
        raise TextError(
            f"{which}: {noun} {token!r} at position {column + 1} is not one that the model knows; "
            f"it knows {listed}{more}"
        )


# The published Mathematics Dataset has exactly these 69 characters. With padding, start and end
# tokens these are the 72 tokens of the paper (section 3).
CHARACTERS = " !'()*+,-./0123456789:<=>?ACDEFGHILMPRSTWabcdefghijklmnopqrstuvwxyz{}"
OF_THE_PAPER = Vocabulary((PAD, SOS, EOS, *CHARACTERS))
MAX_ANSWER = 30  # characters of its longest answer
