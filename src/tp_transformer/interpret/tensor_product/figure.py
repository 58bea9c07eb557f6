"""The figure of the tensor-product analysis: shares of the variance, head by head."""

from collections.abc import Sequence
from math import log10
from typing import Any

import numpy as np

from tp_transformer.foundation import figures
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.record import TITLES
from tp_transformer.interpret.tensor_product.result import HeadShares, Shares, TensorProductResult

TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FULL = 1.25  # top of the axis, so that marks at 100% are not cut off
INTERVAL: dict[str, Any] = {"linewidth": 0.6, "markersize": 4, "markeredgewidth": 0.6}
READABLE = 0.11  # inches from the text of one tick to the next


def plot(result: TensorProductResult) -> "dict[str, figures.Figure]":
    """Plot the shares of the heads of the model, and of untrained models."""
    layers = sorted({head.layer for head in result.heads})
    tall = min(1.1, max(0.45, 6.5 / len(layers)))  # inches, so that many fit on a page
    shown = ((result.heads,), result.initial)
    lowest = _lowest(
        [head for models in shown for heads in models for head in heads], result.d_head
    )
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(layers), 2, sharex="col", sharey=True, squeeze=False)
        for layer, row in zip(layers, grid, strict=True):
            for axes, models in zip(row, shown, strict=True):
                _draw_layer(axes, models, layer, lowest)
            row[0].set_ylabel(f"layer {layer}")
        _scale(grid[0, 0], lowest, tall)
        titles = ("this model", f"{len(result.initial)} untrained\nmodels")
        for title, top, bottom in zip(titles, grid[0], grid[-1], strict=True):
            top.set_title(title)
            bottom.set_xlabel("head")
        drawn.supylabel("share of the variance\nof filler ⊗ role", fontsize=7)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=2)
        below = figures.caption(drawn, f"{_reading(result, lowest)} {result.context.caption}")
        drawn.set_figheight(tall * len(layers) + below + 1.1)
        return {result.name: drawn}


def _lowest(heads: Sequence[HeadShares], d_head: int) -> float:
    """Return the bottom of the axis: below all shares that are near those of random rotations."""
    least = min(min(head.centred.hadamard, head.centred.random_range[0]) for head in heads)
    return max(0.8 * least, 0.2 / d_head)


def _scale(axes: "figures.Axes", lowest: float, tall: float) -> None:
    """Scale shares logarithmically, so that small relative differences are visible."""
    axes.set_yscale("log")
    axes.set_ylim(lowest, FULL)
    ticks = [tick for tick in TICKS if tick >= lowest]
    if tall * log10(2) / log10(FULL / lowest) < READABLE:
        ticks = [tick for tick in ticks if tick in {0.001, 0.01, 0.1, 1.0}]
    axes.set_yticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    axes.set_yticks([], minor=True)


def _reading(result: TensorProductResult, lowest: float) -> str:
    """Explain the marks."""
    heads = [head.centred for model in (result.heads, *result.initial) for head in model]
    is_cut = any(shares.hadamard < lowest for shares in heads)
    bottom = f" Below {lowest:.1%}: at the bottom." if is_cut else ""
    has_interval = any(shares.hadamard_interval for shares in heads)
    interval = "Line: its 95% interval over questions. " if has_interval else ""
    return (
        f"{TITLES[result.where]}. Hadamard: what the diagonal keeps. {interval}"
        "Grey: the range of 95% of random rotations. Ceiling: the best directions of the scored "
        f"positions themselves.{bottom}"
    )


def _draw_layer(
    axes: "figures.Axes", models: Sequence[Sequence[HeadShares]], layer: int, lowest: float
) -> None:
    """Draw a column of marks for each head, with the models side by side."""
    width = 0.9 / len(models)
    for number, heads in enumerate(models):
        own = [head for head in heads if head.layer == layer]
        places = np.array([head.head for head in own]) + (number - (len(models) - 1) / 2) * width
        _draw_shares(axes, places, width, [head.centred for head in own], lowest)
    axes.set_xticks(figures.tick_indices(len(own), 8))
    axes.grid(axis="x", visible=False)


def _draw_shares(
    axes: "figures.Axes",
    places: Floats,
    width: float,
    shares: Sequence[Shares],
    lowest: float,
) -> None:
    """Draw a mark for each share; shares below `lowest` are at the bottom."""
    low, high = np.maximum([own.random_range for own in shares], lowest).T
    axes.bar(places, high - low, width, bottom=low, color="#c8c8c8", label="random rotations")
    marks = (("hadamard", "o", 1.5), ("aligned", "^", 2), ("optimum", "s", 2), ("ceiling", "_", 4))
    names = ("Hadamard", "best rotations found", "best directions", "ceiling")
    colours = (figures.COLOURS[0], figures.COLOURS[1], figures.COLOURS[2], "#000000")
    for (field, mark, size), name, colour in zip(marks, names, colours, strict=True):
        values = np.maximum([getattr(own, field) for own in shares], lowest)
        axes.plot(places, values, mark, color=colour, markersize=size, label=name, clip_on=False)
    for place, own in zip(places, shares, strict=True):
        if own.hadamard_interval is not None:
            ends = np.maximum(own.hadamard_interval, lowest)
            # Often hardly longer than the mark is high, so its ends are wide.
            axes.plot(place * np.ones(2), ends, "_-", color=figures.COLOURS[0], **INTERVAL)
