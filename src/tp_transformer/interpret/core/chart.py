"""The chart of an analysis: rows of marks with their intervals, in panels below each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tp_transformer import figures
from tp_transformer.scoring.statistics import Interval

COLOURS = dict(
    zip(("blue", "orange", "green", "pink", "sky", "red"), figures.COLOURS, strict=False)
)
BAND: Mapping[str, Any] = {"marker": "", "color": "#909090", "linewidth": 3}  # of intervals alone
ROW = 0.3  # inches, with names of two lines
SPREAD = 0.7  # of the distance between rows, over which the marks of a row are spread
LINE = 0.125  # inches of a line of the legend


@dataclass(frozen=True)
class Marks:
    """Values with a common look, one for each row; None where a row has none."""

    label: str
    look: Mapping[str, Any]  # arguments of matplotlib's `plot`
    values: Sequence[float | None]
    intervals: Sequence[Interval | None] = ()


@dataclass(frozen=True, kw_only=True)
class ChartPanel:
    """Rows of marks, from top to bottom; all panels of a chart have marks of the same labels."""

    rows: Sequence[str]
    marks: Sequence[Marks]
    title: str = ""


def look(marker: str, colour: str, *, is_hollow: bool = False, size: float = 3) -> dict[str, Any]:
    """Return the look of a mark, in one of COLOURS or of matplotlib; a hollow one is white."""
    colour = COLOURS.get(colour, colour)
    inside = "white" if is_hollow else colour
    return {"marker": marker, "color": colour, "markerfacecolor": inside, "markersize": size}


def chart(
    panels: Sequence[ChartPanel],
    *,
    axis: str,
    caption: str,
    title: str = "",
    row: float = ROW,
    is_log: bool = False,
) -> "figures.Figure":
    """Plot panels with a common axis and a legend above; `row` is the height of a row in inches."""
    n_rows = [len(panel.rows) for panel in panels]
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid = drawn.subplots(
            len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": n_rows}
        )[:, 0]
        for axes, panel in zip(grid, panels, strict=True):
            _draw(axes, panel, row)
        if is_log:
            _scale_by_logarithm(grid[-1])
        axis = figures.broken(axis, 1.7)
        grid[-1].set_xlabel(axis)
        handles, labels = grid[0].get_legend_handles_labels()
        heading = figures.broken(title, 2.0)
        drawn.legend(handles, labels, loc="outside upper center", ncols=2, title=heading or None)
        below = figures.caption(drawn, caption)
        lines = -(-len(labels) // 2) + 1.3 * len(heading.splitlines()) + axis.count("\n")
        titles = 0.2 * sum(bool(panel.title) for panel in panels) + 0.08 * len(panels)
        drawn.set_figheight(row * sum(n_rows) + titles + LINE * lines + below + 0.55)
        return drawn


def _scale_by_logarithm(axes: "figures.Axes") -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log", nonpositive="clip")
    axes.minorticks_off()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter("{x:g}")  # exponents would be too small to read


def _draw(axes: "figures.Axes", panel: ChartPanel, row: float) -> None:
    for number, marks in enumerate(panel.marks):
        shift = SPREAD * ((number + 0.5) / len(panel.marks) - 0.5)
        line = "none" if marks.look["marker"] else "-"
        axes.plot([], [], linestyle=line, label=marks.label, **marks.look)
        for place, (value, interval) in enumerate(
            zip_longest(marks.values, marks.intervals, fillvalue=None)
        ):
            if value is not None:
                axes.plot(value, place + shift, **marks.look)
            if interval is not None:
                thick, colour = marks.look.get("linewidth", 0.8), marks.look["color"]
                axes.plot(interval, [place + shift] * 2, color=colour, linewidth=thick)
    is_readable = row * figures.PER_INCH / 3 >= 1  # or only some of the rows are named
    step = 1 if is_readable else 2
    names = [figures.broken(name, 1.1) for name in panel.rows[::step]]
    axes.set_yticks(range(0, len(panel.rows), step), names)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    for place in range(1, len(panel.rows)):
        axes.axhline(place - 0.5, color="#e0e0e0", linewidth=0.6)
    axes.set_title(panel.title)
