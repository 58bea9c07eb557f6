"""Text to ids and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import CHARACTERS, FEW_ROWS, Ragged, Vocabulary
from tp_transformer.errors import TextError

VOCABULARY = MATHEMATICS.vocabulary
AUTHORS = Vocabulary(("<unk>", "<pad>", "<sos>", "<eos>", *reversed(CHARACTERS)))
texts = st.lists(st.text(CHARACTERS, max_size=12), max_size=6)


def test_the_tokens_are_those_of_the_paper():
    assert len(VOCABULARY) == 72
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 69
    assert VOCABULARY.tokens[:4] == ("<pad>", "<sos>", "<eos>", " ")
    assert (VOCABULARY.pad, VOCABULARY.sos, VOCABULARY.eos) == (0, 1, 2)
    assert "".join(sorted(CHARACTERS)) == CHARACTERS


@given(texts=texts, data=st.data())
def test_rows_of_ids_are_those_of_the_texts(texts, data):
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8) if texts else st.just([]))
    start = data.draw(st.integers(0, len(texts)))
    end = data.draw(st.integers(start, len(texts)))
    encoded = VOCABULARY.encode(texts)
    for ragged, expected in (
        (encoded.take(np.array(rows, np.int64)), VOCABULARY.encode([texts[row] for row in rows])),
        (encoded.between(start, end), VOCABULARY.encode(texts[start:end])),
    ):
        assert ragged.ids.tolist() == expected.ids.tolist()
        assert ragged.offsets.tolist() == expected.offsets.tolist()


def test_padding_fills_on_the_right():
    ragged = Ragged(np.array([5, 6, 7]), np.array([0, 1, 1, 3]))
    assert ragged.padded(0).tolist() == [[5, 0], [0, 0], [6, 7]]


def test_decoding_stops_at_the_end_and_spells_out_what_is_special():
    ids = VOCABULARY.encode(["1"]).ids[1:]  # 1 <eos>
    one, end = ids.tolist()
    rows = np.array([[one, end, one], [0, one, end], [one, one, one], [end, 0, 0], [90, 1, end]])
    texts = ["1", "<pad>1", "111", "", "<90><sos>"]
    assert VOCABULARY.decode(rows) == texts
    assert VOCABULARY.decode(np.tile(rows, (FEW_ROWS, 1))) == texts * FEW_ROWS
    assert VOCABULARY.decode(np.empty((2, 0), dtype=np.int64)) == ["", ""]
    assert VOCABULARY.decode(np.empty((0, 4), dtype=np.int64)) == []


@pytest.mark.parametrize(
    ("text", "character", "position"),
    [("2 \u00d7 3", "\u00d7", 3), ("\x00", "\\x00", 1), ("ok\n", "\\n", 3), ("B", "B", 1),
     ("\U0001f600", "\U0001f600", 1), ("1\udc80", "\\udc80", 2), ("<pad>\u00e9", "\u00e9", 6)],
)  # fmt: skip
def test_unknown_characters_are_named_with_their_place(text, character, position):
    with pytest.raises(TextError) as error:
        VOCABULARY.encode(["fine", "", text])
    message = str(error.value)
    assert message.startswith(f"text 3: character '{character}' at position {position} ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (("<pad>", "<sos>", "<eos>", "a", "a"), "twice"),
        (("<pad>", "a"), "<eos>, <sos>"),
        (("<pad>", "<sos>", "<eos>", ""), "''"),
        (("<pad>", "<sos>", "<eos>", "ab"), "'ab' is neither a character nor like <pad>"),
        (("<pad>", "<sos>", "<eos>", "\0"), "neither a character"),
        (("<pad>", "<sos>", "<eos>", "\ud800"), "neither a character"),
    ],
)
def test_tokens_that_are_not_a_vocabulary(symbols, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(symbols)


UNICODE = Vocabulary.of(["αβγ δ", "日本語", "𝔸é\u0301", "\u3000ab"])
WORDS = Vocabulary.of(["jump twice", "walk <x> café", "日本"], "words")
nonempty_texts = st.lists(st.text(CHARACTERS, min_size=1, max_size=12), max_size=6)
unicode_texts = st.lists(st.text("".join(UNICODE.tokens[3:]), min_size=1, max_size=9), max_size=6)
word_texts = st.lists(
    st.lists(st.sampled_from(WORDS.tokens[3:]), min_size=1, max_size=5).map(" ".join), max_size=6
)


def laid_out(texts):
    """Texts as bytes, one after another with some between them, their starts and lengths."""
    data = b"?" + b"??".join(text.encode() for text in texts) + b"?"
    lengths = np.array([len(text.encode()) for text in texts], np.int64)
    starts = 1 + np.cumsum(lengths + 2) - lengths - 2
    return np.frombuffer(data, np.uint8), starts.astype(np.int64), lengths


@pytest.mark.parametrize(
    ("vocabulary", "of_vocabulary", "split"),
    [
        (VOCABULARY, nonempty_texts, list),
        (AUTHORS, nonempty_texts, list),
        (UNICODE, unicode_texts, list),
        (WORDS, word_texts, str.split),
    ],
)
@given(data=st.data())
def test_encoding_is_token_by_token_and_decoding_undoes_it(vocabulary, of_vocabulary, split, data):
    texts = data.draw(of_vocabulary)
    encoded = vocabulary.encode(texts)
    for row, text in enumerate(texts):
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]
        tokens = ["<sos>", *split(text), "<eos>"]
        assert ids.tolist() == [vocabulary.tokens.index(token) for token in tokens]
    from_bytes = vocabulary.encode_spans(*laid_out(texts))
    assert from_bytes.ids.tolist() == encoded.ids.tolist()
    assert from_bytes.offsets.tolist() == encoded.offsets.tolist()
    assert vocabulary.count(*laid_out(texts)).tolist() == [len(split(text)) for text in texts]
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])
    assert vocabulary.knows("".join(texts).encode(), offsets)
    for repeated in (texts, texts * FEW_ROWS):  # one by one, and together
        padded = vocabulary.encode(repeated).padded(vocabulary.pad)
        assert vocabulary.decode(padded[:, 1:]) == repeated


def test_words_that_are_not_known_are_named():
    for encode in (WORDS.encode, lambda texts: WORDS.encode_spans(*laid_out(texts))):
        with pytest.raises(
            TextError, match="text 2: word 'run' at position 3 is not one that"
        ) as e:
            encode(["walk", "jump twice run", "walk"])
        assert "café jump twice walk" in str(e.value)
        with pytest.raises(TextError, match="text 1: single blanks separate words, but word 2"):
            encode(["jump  twice"])
        with pytest.raises(TextError, match="word '<eos>' at position 1"):
            encode(["<eos>"])
    assert not WORDS.knows(b"walk<eos>", np.array([0, 4, 9]))
    assert WORDS.decode(np.array([[3, 0, 99, 2]])) == ["<x> <pad> <99>"]


def test_characters_that_are_not_known_are_named_in_bytes_too():
    for vocabulary in (VOCABULARY, UNICODE):
        with pytest.raises(TextError, match="text 2: character 'ü' at position 3 is not one that"):
            vocabulary.encode_spans(*laid_out(["a", "a ü"]))
        assert not vocabulary.knows("a ü".encode(), np.array([0, 4]))
    data, starts, lengths = laid_out(["日本"])
    with pytest.raises(TextError, match="text 1: character '\ufffd'"):
        UNICODE.encode_spans(data, starts, lengths - 1)


def test_a_vocabulary_is_saved_as_it_was_and_words_as_words():
    assert VOCABULARY.to_json() == list(VOCABULARY.tokens)
    for vocabulary in (VOCABULARY, UNICODE, WORDS):
        values = json.loads(json.dumps(vocabulary.to_json()))
        assert Vocabulary.from_json(values) == vocabulary
    for values in ({}, {"tokens": []}, [1], "abc", None):
        with pytest.raises(ValueError, match="must be a list of tokens"):
            Vocabulary.from_json(values)
    with pytest.raises(ValueError, match="the token 'two words' is neither a word"):
        Vocabulary(("<pad>", "<sos>", "<eos>", "two words"), "words")
    with pytest.raises(ValueError, match="characters or words, not 'runes'"):
        Vocabulary(("<pad>", "<sos>", "<eos>"), "runes")


def test_words_come_from_several_texts():
    assert Vocabulary.of(["jump twice", "jump"], "words").tokens[3:] == ("jump", "twice")
    with pytest.raises(ValueError, match="needs a list of texts, not one text"):
        Vocabulary.of("jump twice", "words")
