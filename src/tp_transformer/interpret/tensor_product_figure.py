"""The figure of the tensor product: what is kept of it, head by head, beside initial weights."""

from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import TITLES
from tp_transformer.interpret.tensor_product_result import HeadShares, Shares, TensorProduct

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FULL = 1.25  # top of the axis, so that marks at 100% are whole
INTERVAL: dict[str, Any] = {"linewidth": 0.6, "markersize": 4, "markeredgewidth": 0.6}
READABLE = 0.11  # inches from a tick's text to the next


def draw(result: TensorProduct, context: Context, folder: Path, name: str) -> list[Path]:
    """What is kept by the heads of the model, and of initial weights; returns the files."""
    layers = sorted({one.layer for one in result.heads})
    tall = min(1.1, max(0.45, 6.5 / len(layers)))  # inches, so that many fit a page
    shown = ((result.heads,), result.initial)
    lowest = _lowest([one for draws in shown for draw in draws for one in draw], result.d_head)
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(layers), 2, sharex="col", sharey=True, squeeze=False)
        for layer, row in zip(layers, grid, strict=True):
            for axes, draws in zip(row, shown, strict=True):
                _draw_layer(axes, draws, layer, lowest)
            row[0].set_ylabel(f"layer {layer}")
        _scale(grid[0, 0], lowest, tall)
        titles = ("this model", f"initial weights,\ndrawn {len(result.initial)} times")
        for title, top, bottom in zip(titles, grid[0], grid[-1], strict=True):
            top.set_title(title)
            bottom.set_xlabel("head")
        drawn.supylabel("share of the variance\nof filler ⊗ role", fontsize=7)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=2)
        below = figures.caption(drawn, f"{_reading(result, lowest)} {context.caption(result.seed)}")
        drawn.set_figheight(tall * len(layers) + below + 1.1)
        return figures.save(drawn, folder, name)


def _lowest(heads: Sequence[HeadShares], d_head: int) -> float:
    """The bottom of the axis: below all shares, unless some are far below a random rotation's."""
    least = min(min(one.centred.hadamard, one.centred.random_range[0]) for one in heads)
    return max(0.8 * least, 0.2 / d_head)


def _scale(axes: "Axes", lowest: float, tall: float) -> None:
    """Shares by their logarithm: a few per cent more than others are then seen."""
    axes.set_yscale("log")
    axes.set_ylim(lowest, FULL)
    ticks = [tick for tick in TICKS if tick >= lowest]
    if tall * log10(2) / log10(FULL / lowest) < READABLE:
        ticks = [tick for tick in ticks if tick in {0.001, 0.01, 0.1, 1.0}]
    axes.set_yticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    axes.set_yticks([], minor=True)


def _reading(result: TensorProduct, lowest: float) -> str:
    """How the marks are to be read."""
    heads = [one.centred for draw in (result.heads, *result.initial) for one in draw]
    is_cut = any(one.hadamard < lowest for one in heads)
    bottom = f" Below {lowest:.1%}: at the bottom." if is_cut else ""
    has_interval = any(one.hadamard_interval for one in heads)
    interval = "Line: its 95% interval over questions. " if has_interval else ""
    return (
        f"{TITLES[result.where]}. Hadamard: what the diagonal keeps. {interval}"
        "Grey: where 95% of random rotations are. Ceiling: the best directions of the very "
        f"positions that are scored.{bottom}"
    )


def _draw_layer(
    axes: "Axes", draws: Sequence[Sequence[HeadShares]], layer: int, lowest: float
) -> None:
    """A column of marks for each head; draws beside each other."""
    width = 0.9 / len(draws)
    for number, draw in enumerate(draws):
        own = [one for one in draw if one.layer == layer]
        places = np.array([one.head for one in own]) + (number - (len(draws) - 1) / 2) * width
        _draw_shares(axes, places, width, [one.centred for one in own], lowest)
    axes.set_xticks(figures.every(len(own), 8))
    axes.grid(axis="x", visible=False)


def _draw_shares(
    axes: "Axes",
    places: npt.NDArray[np.float64],
    width: float,
    shares: Sequence[Shares],
    lowest: float,
) -> None:
    """One mark for each share; what has no logarithm, or is far below, is at the bottom."""
    low, high = np.maximum([one.random_range for one in shares], lowest).T
    axes.bar(places, high - low, width, bottom=low, color="#c8c8c8", label="random rotations")
    marks = (("hadamard", "o", 1.5), ("aligned", "^", 2), ("optimum", "s", 2), ("ceiling", "_", 4))
    names = ("Hadamard", "best rotations found", "best directions", "ceiling")
    colours = (figures.COLOURS[0], figures.COLOURS[1], figures.COLOURS[2], "#000000")
    for (field, mark, size), name, colour in zip(marks, names, colours, strict=True):
        values = np.maximum([getattr(one, field) for one in shares], lowest)
        axes.plot(places, values, mark, color=colour, markersize=size, label=name, clip_on=False)
    for place, one in zip(places, shares, strict=True):
        if one.hadamard_interval is not None:
            ends = np.maximum(one.hadamard_interval, lowest)
            # Often hardly longer than the mark is high: its ends are wide to be seen.
            axes.plot(place * np.ones(2), ends, "_-", color=figures.COLOURS[0], **INTERVAL)
