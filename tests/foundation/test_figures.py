"""One style: what the figures of all analyses have in common, and the test of their legibility."""

from dataclasses import replace

import pytest

import tp_transformer as tpt
from legible import illegible, texts
from planted import sample
from tp_transformer.foundation import figures
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
