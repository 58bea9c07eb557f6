"""The figure of exchanged roles: how often the answer follows them, beside its controls."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_transformer import figures
from tp_transformer.interpret.interchange import (
    CONTROL_DRAWS,
    EXCHANGES,
    Exchanged,
    Interchange,
)
from tp_transformer.interpret.outcome import Context
from tp_transformer.scoring.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TALL = 0.3  # inches for two letters
LOOKS: dict[str, dict[str, Any]] = {
    "as exchanged": {"marker": "o", "color": figures.COLOURS[0]},
    "as two others exchanged": {"marker": "x", "color": figures.COLOURS[5]},
    "as exchanged, random directions": {
        "marker": "o",
        "color": figures.COLOURS[0],
        "markerfacecolor": "white",
    },
    "as before": {"marker": "s", "color": "#808080", "markersize": 2},
}
READING = (
    "Answers after the roles of two numbers were exchanged: as if these numbers were (filled), as "
    "if two others were (cross, average of the other exchanges), as before (square). Hollow: as if "
    "these were, after their roles were moved as far in random directions, "
    f"{CONTROL_DRAWS} times. Lines: 95% Wilson intervals. Of the n questions answered before and "
    "after the numbers themselves are exchanged."
)


def draw(found: tuple[Interchange, ...], context: Context, folder: Path, seed: int) -> list[Path]:
    """A panel for each choice of layers, one above the other; returns the files."""
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
        for axes, one in zip(grid, found, strict=True):
            _draw_panel(axes, one.exchanges)
            where = f"layer {one.layers[0]}" if len(one.layers) == 1 else "every layer"
            axes.set_title(f"roles exchanged in {where}")
        grid[-1].set_xlim(left=0)
        grid[-1].xaxis.set_major_formatter("{x:.3g}%")
        grid[-1].set_xlabel("share of the answers")
        for name, look in LOOKS.items():
            grid[0].plot([], [], linestyle="none", label=name, **{"markersize": 3, **look})
        drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        below = figures.caption(drawn, f"{READING} {context.caption(seed)}")
        rows = sum(len(one.exchanges) for one in found)
        drawn.set_figheight(TALL * rows + 0.25 * len(found) + below + 0.75)
        return figures.save(drawn, folder, "interchange")


def _draw_panel(axes: "Axes", exchanges: Sequence[Exchanged]) -> None:
    """A row for each two letters; without questions it is empty."""
    for row, one in enumerate(exchanges):
        if one.n:
            _draw_row(axes, one, row)
    names = [f"{one.letters[0]} ↔ {one.letters[1]}\nn = {one.n}" for one in exchanges]
    axes.set_yticks(range(len(exchanges)), names)
    axes.set_ylim(len(exchanges) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    for place in range(1, len(exchanges)):
        axes.axhline(place - 0.5, color="#e0e0e0", linewidth=0.6)


def _draw_row(axes: "Axes", one: Exchanged, row: int) -> None:
    """The marks of two letters, each a little below the one before."""
    for number, ((share, interval), look) in enumerate(
        zip(_shares(one), LOOKS.values(), strict=True)
    ):
        place = row + 0.2 * (number - (len(LOOKS) - 1) / 2)
        if interval is not None:
            ends = [100 * end for end in interval]
            axes.plot(ends, [place] * 2, color=look["color"], linewidth=0.8)
        axes.plot(100 * share, place, clip_on=False, **{"markersize": 3, **look})


def _shares(one: Exchanged) -> list[tuple[float, Interval | None]]:
    """In the order of the looks, with the intervals of those that have one."""
    swapped, moved = one.swapped, one.moved
    return [
        (swapped.exchanged / one.n, swapped.exchanged_interval),
        (swapped.otherwise / (len(EXCHANGES) - 1) / one.n, None),
        (moved.exchanged / (CONTROL_DRAWS * one.n), moved.exchanged_interval),
        (swapped.kept / one.n, None),
    ]
