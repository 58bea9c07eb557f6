"""The figure of the interchange analysis: how often the answer follows exchanged roles."""

from collections.abc import Sequence
from typing import Any

from tp_transformer.foundation import figures
from tp_transformer.foundation.statistics import Interval
from tp_transformer.interpret.interchange.result import (
    CONTROL_DRAWS,
    EXCHANGES,
    InterchangeResult,
    RoleExchange,
)

TALL = 0.3  # inches for a pair of numbers
LOOKS: dict[str, dict[str, Any]] = {
    "as exchanged": {"marker": "o", "color": figures.COLOURS[0]},
    "as two others exchanged": {"marker": "x", "color": figures.COLOURS[5]},
    "as exchanged, random directions": {
        "marker": "o",
        "color": figures.COLOURS[0],
        "markerfacecolor": "white",
    },
    "as before": {"marker": "s", "color": "#808080", "markersize": 2},
    "as exchanged, numbers": {"marker": "^", "color": figures.COLOURS[1]},
}
READING = (
    "Answers after two numbers got the roles that they have at the other's place: as if these "
    "numbers were exchanged (filled), as if two others were (cross, mean of the other exchanges), "
    "as before (square). Hollow: as if these were, after their roles were moved as far in random "
    f"directions, {CONTROL_DRAWS} times. Triangle: as if these were, after two places got the "
    "roles that they have with the other number. Lines: 95% Wilson intervals. n: questions "
    "answered before and after the numbers themselves are exchanged."
)


def plot(result: InterchangeResult) -> "dict[str, figures.Figure]":
    """Plot a panel for each choice of layers; nothing if no question counts."""
    found = result.interchanges
    if not any(exchange.n for panel in found for exchange in panel.exchanges):
        return {}
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(grid, found, strict=True):
            _draw_panel(axes, panel.exchanges)
            axes.set_title(f"roles exchanged in {panel.where}")
        grid[-1].set_xlim(left=0)
        grid[-1].xaxis.set_major_formatter("{x:.3g}%")
        grid[-1].set_xlabel("share of the answers")
        for name, look in LOOKS.items():
            grid[0].plot([], [], linestyle="none", label=name, **{"markersize": 3, **look})
        drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        below = figures.caption(drawn, f"{READING} {result.context.caption}")
        rows = sum(len(panel.exchanges) for panel in found)
        drawn.set_figheight(TALL * rows + 0.25 * len(found) + below + 0.75)
        return {"interchange": drawn}


def _draw_panel(axes: "figures.Axes", exchanges: Sequence[RoleExchange]) -> None:
    """Draw a row for each pair of numbers; it is empty without questions."""
    for row, exchange in enumerate(exchanges):
        if exchange.n:
            _draw_row(axes, exchange, row)
    names = [
        f"{exchange.letters[0]} ↔ {exchange.letters[1]}\nn = {exchange.n}" for exchange in exchanges
    ]
    axes.set_yticks(range(len(exchanges)), names)
    axes.set_ylim(len(exchanges) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    for place in range(1, len(exchanges)):
        axes.axhline(place - 0.5, color="#e0e0e0", linewidth=0.6)


def _draw_row(axes: "figures.Axes", exchange: RoleExchange, row: int) -> None:
    """Draw the marks of a pair of numbers, each a little below the one before."""
    for number, ((share, interval), look) in enumerate(
        zip(_shares(exchange), LOOKS.values(), strict=True)
    ):
        place = row + 0.16 * (number - (len(LOOKS) - 1) / 2)
        if interval is not None:
            ends = [100 * end for end in interval]
            axes.plot(ends, [place] * 2, color=look["color"], linewidth=0.8)
        axes.plot(100 * share, place, clip_on=False, **{"markersize": 3, **look})


def _shares(exchange: RoleExchange) -> list[tuple[float, Interval | None]]:
    """Return the shares in the order of LOOKS, with their intervals."""
    places, moved, numbers, n = exchange.places, exchange.moved, exchange.numbers, exchange.n
    return [
        (places.exchanged / n, places.exchanged_interval),
        (places.otherwise / (len(EXCHANGES) - 1) / n, None),
        (moved.exchanged / (CONTROL_DRAWS * n), moved.exchanged_interval),
        (places.kept / n, None),
        (numbers.exchanged / n, numbers.exchanged_interval),
    ]
