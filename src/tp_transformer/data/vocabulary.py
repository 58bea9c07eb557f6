"""Tokens: text to ids and back, for many texts at once.

A token is a character or, in a vocabulary of words, a word; single blanks separate the words of a
text. A model trained elsewhere may number its tokens differently, so the order belongs to the model
and is saved with it.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tp_transformer.foundation.errors import TextError

PAD, SOS, EOS = "<pad>", "<sos>", "<eos>"

_BLANK = ord(" ")
_MOST_SHOWN = 100  # tokens that an error lists
# Categories of Unicode that no token has: controls, surrogates, unassigned, separators of lines.
NO_TEXT = {"Cc", "Cs", "Cn", "Zl", "Zp"}

Ids = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Ids
    offsets: Ids

    @property
    def lengths(self) -> Ids:
        """How many ids each row has."""
        return self.offsets[1:] - self.offsets[:-1]

    def take(self, rows: Integers) -> "Ragged":
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
        """The vocabulary of some texts, in the order of Unicode."""
        if tokenisation == "words" and isinstance(texts, str):
            raise ValueError("a vocabulary of words is made of a list of texts, not of one text")
        parts = (text.split(" ") if tokenisation == "words" else text for text in texts)
        found = set().union(*parts)
        return cls((PAD, SOS, EOS, *sorted(found)), tokenisation)

    @classmethod
    def from_json(cls, values: Any) -> "Vocabulary":
        """Inverse of `to_json`; raises ValueError for invalid values."""
        tokenisation = "characters"
        if isinstance(values, dict) and values.keys() == {"tokenisation", "tokens"}:
            tokenisation, values = values["tokenisation"], values["tokens"]
        if not isinstance(values, list) or not all(isinstance(token, str) for token in values):
            raise ValueError("a vocabulary must be a list of tokens")
        return cls(tuple(values), tokenisation)  # type: ignore[arg-type]

    def to_json(self) -> Any:
        """As JSON has it: characters as a list, in the order of their ids."""
        tokens = list(self.tokens)
        return {"tokenisation": self.tokenisation, "tokens": tokens} if self.is_words else tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def pad(self) -> int:
        """The id of padding."""
        return self.tokens.index(PAD)

    @cached_property
    def sos(self) -> int:
        """The id that starts every sequence."""
        return self.tokens.index(SOS)

    @cached_property
    def eos(self) -> int:
        """The id that ends every sequence."""
        return self.tokens.index(EOS)

    @cached_property
    def is_words(self) -> bool:
        """Whether its tokens are words."""
        return self.tokenisation == "words"

    @cached_property
    def is_ascii(self) -> bool:
        """Whether each of its tokens is one byte of a text."""
        return not self.is_words and int(self._code_of_id.max()) < 128

    @cached_property
    def bytes_per_token(self) -> int:
        """How many bytes of a text a token takes at most, with the blank behind a word."""
        return max(map(len, map(str.encode, self._id_of_token)), default=1) + self.is_words

    def encode(self, texts: Sequence[str], noun: str = "text", first: int = 1) -> Ragged:
        """The ids of each text, between start and end tokens.

        Errors call a text by `noun` and by its number, counted from `first`.
        """
        if self.is_words:
            ids = self._word_ids(" ".join(filter(None, texts)))
            counts = [text.count(" ") + 1 if text else 0 for text in texts]
        else:
            ids, counts = self._character_ids("".join(texts)), [len(text) for text in texts]
        lengths = np.array(counts, dtype=np.int64)
        if (ids < 0).any():
            row, column = _row_and_column(np.cumsum(lengths), int(np.argmax(ids < 0)))
            self._refuse(f"{noun} {row + first}", texts[row], column)
        return self._framed(ids, lengths)

    def encode_spans(self, data: npt.NDArray[np.uint8], starts: Ids, lengths: Ids) -> Ragged:
        """The ids of texts that lie as UTF-8 in `data`, each between start and end tokens.

        Text i is `data[starts[i]:starts[i] + lengths[i]]`, with at least one byte before and one
        behind it in `data`. Nothing but the bytes of the texts is read, so `data` may be a mapped
        file.
        """
        if self.is_ascii:
            found = self._encode_bytes(data, starts, lengths)
        else:
            content, _ = self._joined(data, starts, lengths)
            text = content.tobytes().decode("utf-8", "replace")
            ids = self._word_ids(text[:-1]) if self.is_words else self._character_ids(text)
            found = None
            if ids.min(initial=0) >= 0:
                found = self._framed(ids, self.count(data, starts, lengths))
        if found is None:
            for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
                text = data[start : start + length].tobytes().decode("utf-8", "replace")
                self.encode(
                    [text], first=row + 1
                )  # raises for the first text with an unknown token
            raise TextError("a text is not valid UTF-8")
        return found

    def _encode_bytes(
        self, data: npt.NDArray[np.uint8], starts: Ids, lengths: Ids
    ) -> Ragged | None:
        """The same, if every token is a byte; None if one is unknown."""
        offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
        # The frame is read along with the text, one byte before and one behind it, and then
        # overwritten: one gather instead of a gather and a scatter.
        places = np.repeat(starts - 1 - offsets[:-1], lengths + 2)
        places += np.arange(offsets[-1])
        ids = self._id_of_byte[data[places]]
        ids[offsets[:-1]] = self.sos
        ids[offsets[1:] - 1] = self.eos
        return Ragged(ids, offsets) if ids.min(initial=0) >= 0 else None

    def count(self, data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> Ids:
        """How many tokens texts have that lie in `data` as for `encode_spans`; none is empty."""
        if self.is_ascii or not len(lengths):
            return lengths.astype(np.int64, copy=False)
        content, offsets = self._joined(data, starts, lengths)
        # The blank behind a word; the first byte of a character, which is none of 10xxxxxx.
        is_token = content == _BLANK if self.is_words else (content & 0xC0) != 0x80
        counts: Ids = np.add.reduceat(is_token, offsets[:-1], dtype=np.int64)
        return counts

    def knows(self, data: bytes | memoryview, offsets: Integers) -> bool:
        """Whether texts that lie end to end as UTF-8 have known tokens only; none is empty."""
        if self.is_ascii:
            # `translate` deletes what is known: 0.6 ns a byte, where a lookup in numpy takes 3.
            return not bytes(data).translate(None, self._alphabet)
        if not self.is_words:
            return set(str(data, "utf-8", "replace")) <= self._id_of_token.keys()
        starts, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        texts = (str(data[i:j], "utf-8", "replace") for i, j in zip(starts, ends, strict=True))
        return set().union(*(text.split(" ") for text in texts)) <= self._id_of_token.keys()

    def _joined(
        self, data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers
    ) -> tuple[npt.NDArray[np.uint8], Ids]:
        """The bytes of texts end to end, with a blank behind each if tokens are words; offsets."""
        n_bytes = lengths + self.is_words
        offsets = np.concatenate([[0], np.cumsum(n_bytes)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], n_bytes)
        is_text = inside < np.repeat(lengths, n_bytes)
        content = np.full(offsets[-1], _BLANK, np.uint8)
        content[is_text] = data[(inside + np.repeat(starts, n_bytes))[is_text]]
        return content, offsets

    def _framed(self, ids: Ids, lengths: Integers) -> Ragged:
        """Rows of ids, each with the start token before it and the end token behind it."""
        offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
        framed = np.empty(offsets[-1], dtype=np.int64)
        is_text = np.ones(len(framed), dtype=bool)
        is_text[offsets[:-1]] = is_text[offsets[1:] - 1] = False
        framed[offsets[:-1]] = self.sos
        framed[offsets[1:] - 1] = self.eos
        framed[is_text] = ids
        return Ragged(framed, offsets)

    def _word_ids(self, text: str) -> Ids:
        """The id of each word, -1 where it is unknown."""
        words = text.split(" ") if text else []
        return np.fromiter(map(self._id_of_token.get, words, repeat(-1)), np.int64, len(words))

    def _character_ids(self, text: str) -> Ids:
        """The id of each character, -1 where it is unknown."""
        codes = _code_points(text)
        last = len(self._id_of_code) - 1
        return np.where(codes <= last, self._id_of_code[np.minimum(codes, last)], -1)

    def decode(self, ids: npt.NDArray[Any]) -> list[str]:
        """The text of each row up to its end token, or the whole row if there is none.

        A special token inside a text is spelled out (`<pad>`), so that an answer that holds one
        is never mistaken for the answer without it.
        """
        if ids.size == 0:
            return [""] * len(ids)
        ended = ids == self.eos
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1), ids.shape[1])
        if self.is_words:
            rows = zip(ids, lengths, strict=True)
            return [" ".join(map(self._spell, row[:length])) for row, length in rows]
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        codes = self._code_of_id[np.minimum(ids, len(self.tokens))]
        characters = codes[inside].astype("<u4").tobytes().decode("utf-32-le")
        ends = np.cumsum(lengths)
        texts = [characters[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        for row in np.flatnonzero(((codes == 0) & inside).any(axis=1)):
            texts[row] = "".join(self._spell(i) for i in ids[row, : lengths[row]])
        return texts

    def _spell(self, index: int) -> str:
        return self.tokens[index] if index < len(self.tokens) else f"<{index}>"

    @cached_property
    def _id_of_token(self) -> dict[str, int]:
        """The id of each token that a text can have."""
        return {t: i for i, t in enumerate(self.tokens) if not self._is_special(t)}

    @cached_property
    def _alphabet(self) -> bytes:
        return "".join(self._id_of_token).encode()

    @cached_property
    def _id_of_code(self) -> Ids:
        """The id at each code point, -1 where there is none."""
        codes = self._code_of_id[: len(self.tokens)]
        table = np.full(int(codes.max()) + 2, -1, dtype=np.int64)
        table[codes] = np.arange(len(codes))
        table[0] = -1
        return table

    @cached_property
    def _id_of_byte(self) -> Ids:
        """The id of each ASCII character, -1 for every byte that is no token."""
        table = np.full(256, -1, dtype=np.int64)
        known = self._id_of_code[:128]
        table[: len(known)] = known
        return table

    @cached_property
    def _code_of_id(self) -> Ids:
        """The code point of each id; 0 for special tokens, and last for ids that have none."""
        codes = [ord(token) if len(token) == 1 else 0 for token in self.tokens]
        return np.array([*codes, 0], dtype=np.int64)

    def _refuse(self, which: str, text: str, column: int) -> None:
        """Raise for the token at a place of a text."""
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


def _code_points(text: str) -> npt.NDArray[np.int64]:
    # A lone surrogate, which a terminal can produce, is a code point like any other here.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)


def _row_and_column(ends: Ids, position: int) -> tuple[int, int]:
    """Which row of a ragged array, and where in it, a position is; `ends` are the rows' ends."""
    row = int(np.searchsorted(ends, position, side="right"))
    return row, position - int(ends[row - 1] if row else 0)
