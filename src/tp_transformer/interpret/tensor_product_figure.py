"""The figure of the tensor product: what is kept of it, head by head, beside initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.tensor_product_result import HeadShares, Shares, TensorProduct

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: TensorProduct, context: Context, folder: Path) -> list[Path]:
    """What is kept by the heads of the model, and of initial weights; returns the files."""
    many = len(result.heads) > 32  # more than a half of the width has room for
    with figures.blank(7.0, 5.4 if many else 3.2) as drawn:
        axes = drawn.subplots(
            2 if many else 1, 1 if many else 2, sharey=True, squeeze=False
        ).ravel()
        titles = ("this model", f"initial weights, drawn {len(result.initial)} times")
        shown = ((result.heads,), result.initial)
        for place, draws, title in zip(axes, shown, titles, strict=True):
            _draw(place, draws)
            place.set_title(title, fontsize=8)
            if many or place is axes[0]:
                place.set_ylabel("share of the variance\nof filler ⊗ role")
        handles, labels = axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=7)
        figures.caption(drawn, context.caption)
        return figures.save(drawn, folder, "tensor-product")


def _draw(axes: "Axes", draws: Sequence[Sequence[HeadShares]]) -> None:
    """A column of marks for each head, layers apart from each other; draws over each other."""
    heads = draws[0]
    layers = sorted({one.layer for one in heads})
    places = [number + layers.index(one.layer) for number, one in enumerate(heads)]
    for draw in draws:
        _draw_shares(axes, places, [one.centred for one in draw])
    for layer in layers:
        own = [place for place, one in zip(places, heads, strict=True) if one.layer == layer]
        axes.text(float(np.mean(own)), 1.02, f"layer {layer}", ha="center", fontsize=7)
    axes.set_xticks(places, [str(one.head) for one in heads], fontsize=6)
    axes.set_xlabel("head")
    axes.set_ylim(0, 1.1)
    axes.grid(axis="x", visible=False)


def _draw_shares(axes: "Axes", places: Sequence[int], shares: Sequence[Shares]) -> None:
    low, high = zip(*(one.random_range for one in shares), strict=True)
    axes.bar(
        places, np.subtract(high, low), 0.9, bottom=low, color="#c8c8c8", label="random rotations"
    )
    marks = (("hadamard", "o"), ("aligned", "^"), ("optimum", "s"), ("ceiling", "_"))
    names = ("Hadamard", "best rotations found", "best directions", "ceiling")
    colours = (figures.COLOURS[0], figures.COLOURS[1], figures.COLOURS[2], "#000000")
    for (field, mark), name, colour in zip(marks, names, colours, strict=True):
        values = [getattr(one, field) for one in shares]
        axes.plot(places, values, mark, color=colour, markersize=4, label=name)
