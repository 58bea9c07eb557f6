"""The figure of the tensor product: what is kept of it, head by head, beside initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import TITLES
from tp_transformer.interpret.tensor_product_result import HeadShares, Shares, TensorProduct

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: TensorProduct, context: Context, folder: Path, name: str) -> list[Path]:
    """What is kept by the heads of the model, and of initial weights; returns the files."""
    layers = sorted({one.layer for one in result.heads})
    tall = min(0.9, max(0.45, 6.5 / len(layers)))  # inches, so that many fit a page
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(layers), 2, sharex="col", sharey=True, squeeze=False)
        shown = ((result.heads,), result.initial)
        for layer, row in zip(layers, grid, strict=True):
            for axes, draws in zip(row, shown, strict=True):
                _draw_layer(axes, draws, layer)
            row[0].set_ylabel(f"layer {layer}")
        titles = ("this model", f"initial weights,\ndrawn {len(result.initial)} times")
        for title, top, bottom in zip(titles, grid[0], grid[-1], strict=True):
            top.set_title(title)
            bottom.set_xlabel("head")
        drawn.supylabel("share of the variance\nof filler ⊗ role", fontsize=7)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=2)
        below = figures.caption(drawn, f"{TITLES[result.where]}. {context.caption(result.seed)}")
        drawn.set_figheight(tall * len(layers) + below + 1.1)
        return figures.save(drawn, folder, name)


def _draw_layer(axes: "Axes", draws: Sequence[Sequence[HeadShares]], layer: int) -> None:
    """A column of marks for each head; draws over each other."""
    for draw in draws:
        own = [one for one in draw if one.layer == layer]
        _draw_shares(axes, [one.head for one in own], [one.centred for one in own])
    axes.set_xticks(figures.every(len(own), 8))
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_ylim(-0.05, 1.05)
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
        axes.plot(places, values, mark, color=colour, markersize=3, label=name)
