"""Whether a figure can be read where a paper prints it."""

from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from tp_transformer import figures

MARGINAL = 1.0  # points by which boxes of texts may overlap: they are a little larger than the ink
HIGHEST = 9.5  # inches


class Drawn(NamedTuple):
    """A text as it is drawn."""

    words: str
    size: float  # points
    box: np.ndarray  # left, bottom, right, top in points


def illegible(drawn, found):
    """What is wrong with a figure and its texts: its size; they are small, cut off or overlap."""
    assert found  # else nothing would be looked at
    width, height = drawn.get_size_inches()
    wrong = [] if width in {figures.COLUMN, figures.PAGE} else [f"{width} inches wide"]
    wrong += [] if height <= HIGHEST else [f"{height:.1f} inches high"]
    wrong += [f"{one.words!r} is small" for one in found if one.size < figures.SMALLEST]
    boxes = np.array([one.box for one in found])
    reach = np.array([0, 0, 72 * width, 72 * height])
    beyond = (boxes - reach) * [-1, -1, 1, 1] > 0.5
    wrong += [f"{found[place].words!r} is cut off" for place in np.flatnonzero(beyond.any(axis=1))]
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    overlap = np.triu((high - low > MARGINAL).all(axis=2), k=1)
    wrong += [
        f"{found[one].words!r} overlaps {found[other].words!r}"
        for one, other in np.argwhere(overlap)
    ]
    return wrong


def texts(drawn):
    """The texts that are drawn; ticks beyond the axes, for example, are not."""
    found = []
    draw = Text.draw
    drawn.set_dpi(300)  # as it is saved: with fewer dots, texts are a little narrower

    def note(text, renderer):
        words = text.get_text()
        if text.get_visible() and words.strip():
            box = text.get_window_extent(renderer).extents * 72 / drawn.dpi
            has_exponents = "$" in words and text.get_parse_math()
            found.append(Drawn(words, text.get_fontsize() * (0.7 if has_exponents else 1), box))
        draw(text, renderer)

    with patch.object(Text, "draw", note):
        FigureCanvasAgg(drawn).draw()
    return found
