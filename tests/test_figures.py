"""One style: what the figures of all analyses have in common, and the test of their legibility."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import tp_transformer as tpt
from legible import illegible, texts
from planted import sample
from tp_transformer import figures
from tp_transformer.interpret import tensor_product


def wrong(drawn):
    return illegible(drawn, texts(drawn))


@pytest.mark.parametrize("width", [figures.COLUMN, figures.PAGE])
def test_the_style_is_legible(width):
    with figures.figure(width, 2.0) as (drawn, axes):
        axes.plot([0, 1], [0, 100], label="a line")
        axes.set(xlabel="across", ylabel="up", title="One")
        axes.legend()
        drawn.suptitle("All")
        figures.caption(drawn, "A_MODEL_WITH_A_LONG_NAME$x^{2}$ after 12,345 steps; " * 5)
        assert wrong(drawn) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda drawn: drawn.set_figwidth(4.0), ["4.0 inches wide"]),
        (lambda drawn: drawn.set_figheight(12.0), ["12.0 inches high"]),
        (lambda drawn: drawn.text(0.5, 0.9, "tiny", fontsize=5.9), ["'tiny' is small"]),
        (lambda drawn: drawn.text(0.5, 0.9, "$x^2$", fontsize=8), ["'$x^2$' is small"]),
        (lambda drawn: drawn.text(0.98, 0.9, "gone"), ["'gone' is cut off"]),
        (lambda drawn: drawn.text(0.52, 0.5, "there"), ["'here' overlaps 'there'"]),
        (lambda drawn: drawn.text(0.98, 0.9, "unseen", visible=False), []),
    ],
)
def test_what_cannot_be_read_is_found(spoil, said):
    with figures.blank(figures.COLUMN, 2.0) as drawn:
        drawn.text(0.5, 0.5, "here")
        assert wrong(drawn) == []
        spoil(drawn)
        assert wrong(drawn) == said


def test_texts_are_broken_and_numbers_left_out_where_there_is_no_room():
    assert figures.broken("a text of some words", 0.6) == "a text of\nsome words"
    assert figures.broken("MUCH WIDER WORDS", 0.5) == "MUCH\nWIDER\nWORDS"
    assert figures.broken("ab", 0.01) == "a\nb"
    assert figures.broken("", 1.0) == ""
    assert list(figures.tick_indices(8, 8)) == list(range(8))
    assert list(figures.tick_indices(9, 8)) == [0, 2, 4, 6, 8]
    assert list(figures.tick_indices(16, 8)) == [0, 4, 8, 12]


def test_the_figure_of_an_analysis_is_saved_in_every_format(tmp_path):
    model, few = tpt.build("tp-transformer-tiny", d_model=16), sample(4)
    found = tensor_product(model, few, layer=0)
    named = replace(found.context, model={**found.context.model, "name": "a$b^c$"})
    _, *files = replace(found, context=named).save(tmp_path)
    starts = [file.read_bytes()[:4] for file in files]
    assert starts == [b"<?xm", b"%PDF", b"\x89PNG"]
    assert "of filler ⊗ role" in files[0].read_text("utf-8")
    assert "a$b^c$; " in files[0].read_text("utf-8")


def test_a_number_on_a_category_has_contrast():
    looks = [figures.qualitative(number) for number in range(20)]
    assert len(set(looks)) == 20
    assert figures.qualitative(20) == looks[0]
    for colour, ink in looks:
        linear = [v / 12.92 if v < 0.04 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
        luminance = np.dot([0.2126, 0.7152, 0.0722], linear)
        contrast = (luminance + 0.05) / 0.05
        assert (contrast if ink == "black" else 21 / contrast) >= 4.5


def test_a_caption_can_be_read_back_and_taken_away():
    with figures.figure(figures.COLUMN, 2.0) as (drawn, axes):
        axes.set_title("One")
        below = figures.caption(drawn, "a caption of some words " * 10)
        drawn.set_figheight(2.0 + below)
        assert figures.caption_of(drawn) == ("a caption of some words " * 10).strip()
        figures.remove_caption(drawn)
        assert figures.caption_of(drawn) == ""
        assert drawn.get_figheight() == pytest.approx(2.0)
        assert wrong(drawn) == []


@pytest.mark.parametrize("tokens", ["#12/3%", "#" + "1+" * 30 + "%", ["#", "jump", "twice", "%"]])
def test_weights_of_characters_and_of_words_can_be_read(tokens):
    weights = np.full((len(tokens), len(tokens)), 1 / len(tokens))
    drawn = figures.plot_weights(weights, tokens, tokens, "encoder.1, head 3", "A caption.")
    assert wrong(drawn) == []
    box = drawn.axes[0].get_window_extent()
    assert box.width == pytest.approx(box.height, rel=0.01)
    words = [text.words for text in texts(drawn)]
    assert sum(word in tokens for word in words) >= 2 * len(tokens)
