"""Text to ids and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.vocabulary import CHARACTERS, Ragged, Vocabulary
from tp_transformer.foundation.errors import TextError

VOCABULARY = Vocabulary()
AUTHORS = Vocabulary(("<unk>", "<pad>", "<sos>", "<eos>", *reversed(CHARACTERS)))
texts = st.lists(st.text(CHARACTERS, max_size=12), max_size=6)


def test_the_symbols_are_the_designs():
    assert len(VOCABULARY) == 72
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 69
    assert VOCABULARY.symbols[:4] == ("<pad>", "<sos>", "<eos>", " ")
    assert (VOCABULARY.pad, VOCABULARY.sos, VOCABULARY.eos) == (0, 1, 2)
    assert "".join(sorted(CHARACTERS)) == CHARACTERS


@pytest.mark.parametrize("vocabulary", [VOCABULARY, AUTHORS])
@given(texts=texts)
def test_encoding_is_symbol_by_symbol(vocabulary, texts):
    encoded = vocabulary.encode(texts)
    assert len(encoded.lengths) == len(texts)
    for row, text in enumerate(texts):
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]
        expected = [vocabulary.symbols.index(symbol) for symbol in ["<sos>", *text, "<eos>"]]
        assert ids.tolist() == expected


@pytest.mark.parametrize("vocabulary", [VOCABULARY, AUTHORS])
@given(texts=texts)
def test_decoding_undoes_encoding(vocabulary, texts):
    padded = vocabulary.encode(texts).padded(vocabulary.pad)
    assert vocabulary.decode(padded[:, 1:]) == texts


@given(texts=texts, data=st.data())
def test_taking_rows_is_taking_texts(texts, data):
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8) if texts else st.just([]))
    taken = VOCABULARY.encode(texts).take(np.array(rows, dtype=np.int64))
    expected = VOCABULARY.encode([texts[row] for row in rows])
    assert taken.ids.tolist() == expected.ids.tolist()
    assert taken.offsets.tolist() == expected.offsets.tolist()


@given(texts=texts, data=st.data())
def test_rows_between_two_are_those_texts(texts, data):
    start = data.draw(st.integers(0, len(texts)))
    end = data.draw(st.integers(start, len(texts)))
    part, expected = (
        VOCABULARY.encode(texts).between(start, end),
        VOCABULARY.encode(texts[start:end]),
    )
    assert part.ids.tolist() == expected.ids.tolist()
    assert part.offsets.tolist() == expected.offsets.tolist()


def test_padding_fills_on_the_right():
    ragged = Ragged(np.array([5, 6, 7]), np.array([0, 1, 1, 3]))
    assert ragged.padded(0).tolist() == [[5, 0], [0, 0], [6, 7]]


def test_decoding_stops_at_the_end_and_spells_out_what_is_special():
    ids = VOCABULARY.encode(["1"]).ids[1:]  # 1 <eos>
    one, end = ids.tolist()
    rows = np.array([[one, end, one], [0, one, end], [one, one, one], [end, 0, 0], [90, 1, end]])
    assert VOCABULARY.decode(rows) == ["1", "<pad>1", "111", "", "<90><sos>"]
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
def test_refuses_what_is_not_a_vocabulary(symbols, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(symbols)
