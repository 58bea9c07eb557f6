"""Whether a figure can be read where a paper prints it."""

from unittest.mock import patch

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from tp_transformer import figures

MARGINAL = 1.0  # points by which boxes of texts may overlap: they are a little larger than the ink


def illegible(drawn, widths=(figures.COLUMN, figures.PAGE)):
    """What is wrong with a figure, in words: its width, small, cut off or overlapping texts."""
    texts = _texts(drawn)
    assert texts  # else nothing is looked at
    width, height = drawn.get_size_inches()
    wrong = [] if width in widths else [f"{width} inches wide"]
    wrong += [] if height <= 9.5 else [f"{height:.1f} inches high"]
    wrong += [
        f"{text!r} in {size:.1f} points" for text, size, _ in texts if size < figures.SMALLEST
    ]
    boxes = np.array([box for *_, box in texts])  # (text, left bottom right top), points
    outside = (boxes[:, :2] < -0.5).any(axis=1) | (
        boxes[:, 2:] > 72 * np.array([width, height]) + 0.5
    ).any(axis=1)
    wrong += [f"{texts[place][0]!r} is cut off" for place in np.flatnonzero(outside)]
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    overlaps = np.triu((high - low > MARGINAL).all(axis=2), k=1)
    wrong += [
        f"{texts[one][0]!r} overlaps {texts[other][0]!r}" for one, other in np.argwhere(overlaps)
    ]
    return wrong


def _texts(drawn):
    """The texts that are drawn: each with its size and its box in points."""
    found = []
    draw_text = Text.draw

    def noted(text, renderer):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(renderer).extents * 72 / drawn.dpi
            found.append((text.get_text(), _size(text), box))
        draw_text(text, renderer)

    with patch.object(Text, "draw", noted):
        FigureCanvasAgg(drawn).draw()
    return found


def _size(text):
    """The points of a text, of its exponents if it has any."""
    return text.get_fontsize() * (0.7 if "$" in text.get_text() and text.get_parse_math() else 1)
