"""The figures of attention: rows of symbols (figure 3 of the paper), heat maps, relations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.interpret.attention_maps_result import AttentionMaps, Map
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.following import LEAST_MARGIN, Ranking
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import ENCODER
from tp_transformer.interpret.roles_figure import SIDE_COLOURS
from tp_transformer.interpret.structure import SIDE, labels
from tp_transformer.scoring.statistics import FEWEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAINTEST = 0.05  # weights below are not drawn as lines
PER_POINT = 1 / 86  # inches across for a point of a character in a row, with room between
NARROWEST = 0.052  # inches for a character of the smallest size, where there are many
IN_COLUMN = int(figures.COLUMN / (figures.SMALLEST * PER_POINT))  # characters
TALL = 0.95  # inches from a question's rows to the next one's
NEXT_TO, UNDER = 0.052, 0.09  # inches from a symbol of the smallest size to the next
BESIDE, ABOVE = 0.2, 0.33  # inches around a heat map, for its symbols and its title
HIGHEST = 7.8  # inches of heat maps below each other, which with the rest make a page
GREY = "#909090"


def draw(maps: AttentionMaps, context: Context, folder: Path) -> list[Path]:
    """Rows of symbols for each head, a heat map of all, the search; returns the files."""
    files = []
    for number in range(len(maps.heads)):
        files += _save_rows(maps, number, context, folder)
    files += _save_heat(maps, context, folder)
    if any(ranking.heads for ranking in maps.rankings):
        files += _save_rankings(maps, context, folder)
    return files


@dataclass(frozen=True)
class _Layout:
    """The size of rows of characters, in inches and in points."""

    across: int  # characters

    @property
    def width(self) -> float:
        """A column where there is room for its characters, else a page; more if it must be."""
        if self.across <= IN_COLUMN:
            return figures.COLUMN
        return max(figures.PAGE, self.across * NARROWEST)

    @property
    def unit(self) -> float:
        """The inches for a character; few are not drawn farther apart."""
        return min(0.2, self.width / self.across)

    @property
    def size(self) -> float:
        """The points of a character."""
        return min(8.0, max(figures.SMALLEST, self.unit / PER_POINT))


def _save_rows(maps: AttentionMaps, number: int, context: Context, folder: Path) -> list[Path]:
    """Figure 3: what is attended to above, what attends below, a line for each weight."""
    head = maps.heads[number]
    layout = _Layout(max(max(len(one.keys), len(one.queries)) for one in maps.maps))
    with figures.figure(layout.width, 1.0) as (drawn, axes):
        axes.set_axis_off()
        axes.set_xlim(0, layout.width / layout.unit)
        axes.set_ylim(TALL * len(maps.maps), 0)
        for row, one in enumerate(maps.maps):
            _draw_rows(axes, one, one.weights[number], row, layout, maps.where == ENCODER)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        drawn.suptitle(figures.broken(f"{maps.title}, head {head}", 0.7 * layout.width))
        reading = "Numerators are blue, denominators gold." if maps.where == ENCODER else maps.read
        below = figures.caption(
            drawn,
            "Each symbol below takes information from symbols above; weights below "
            f"{FAINTEST:g} are not drawn. {reading} "
            f"{maps.source}{context.caption(maps.seed)}",
        )
        drawn.set_figheight(TALL * len(maps.maps) + below + 0.4)
        name = f"attention-{maps.where}-layer{maps.layer}-head{head}"
        return figures.save(drawn, folder, name)


def _draw_rows(
    axes: "Axes",
    one: Map,
    weights: npt.NDArray[np.floating],
    row: int,
    layout: _Layout,
    coloured: bool,
) -> None:
    """One question: its two rows of characters, and lines of queries in their colours."""
    from matplotlib.collections import LineCollection

    colours = _query_colours(one) if coloured else {}
    middle = layout.width / layout.unit / 2
    above, below = middle - len(one.keys) / 2 + 0.5, middle - len(one.queries) / 2 + 0.5
    upper, lower = TALL * row + 0.1, TALL * (row + 1) - 0.15
    look: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "family": "monospace",
        "fontsize": layout.size,
    }
    for x, character in enumerate(one.keys):
        axes.text(x + above, upper, character, **look)
    for x, character in enumerate(one.queries):
        axes.text(x + below, lower, character, color=colours.get(x, "black"), **look)
    queries, keys = np.nonzero(weights >= FAINTEST)
    own = weights[queries, keys]
    gap = 0.7 * layout.size / 72  # from the middle of a symbol to where its lines begin
    lines = LineCollection(
        [
            [(key + above, upper + gap), (query + below, lower - gap)]
            for query, key in zip(queries, keys, strict=True)
        ],
        colors=[colours.get(int(query), "#606060") for query in queries],
        alpha=np.minimum(0.1 + own, 1.0),
        linewidths=0.4 + 1.2 * own,
    )
    axes.add_collection(lines)


def _query_colours(one: Map) -> dict[int, str]:
    expression = parse(one.question)
    if expression is None:
        return {}
    sides = labels(expression)[SIDE]
    return {at: SIDE_COLOURS[side] for at, side in enumerate(sides) if side is not None}


def _save_heat(maps: AttentionMaps, context: Context, folder: Path) -> list[Path]:
    """All chosen heads for the shortest question, in as many figures as a page's height makes."""
    one, n = maps.shortest, len(maps.heads)
    wide, tall = NEXT_TO * len(one.keys) + BESIDE, max(UNDER * len(one.queries), 0.3) + ABOVE
    width = figures.COLUMN if 2 * wide <= figures.COLUMN else max(figures.PAGE, wide)
    in_row = 2 if width == figures.COLUMN else max(1, int(width / wide))
    at_once = in_row * max(1, int(HIGHEST / tall))
    files = []
    for first in range(0, n, at_once):
        own = range(first, min(first + at_once, n))
        rows = -(-len(own) // in_row)
        shape = (rows, -(-len(own) // rows))
        with figures.blank(width, 1.0) as drawn:
            _draw_heat(drawn, maps, own, shape)
            reading = "" if maps.where == ENCODER else f"{maps.read} "
            below = figures.caption(
                drawn,
                f"Rows attend to columns. {reading}{maps.source}{context.caption(maps.seed)}",
            )
            drawn.set_figheight(rows * tall + below + 0.8)
            some = "" if len(own) == n else f"-head{own[0]}to{own[-1]}"
            files += figures.save(drawn, folder, f"attention-{maps.where}-layer{maps.layer}{some}")
    return files


def _draw_heat(
    drawn: "Figure", maps: AttentionMaps, numbers: Sequence[int], shape: tuple[int, int]
) -> None:
    """Some of the heads: rows attend, columns are attended to."""
    one = maps.shortest
    grid: Any = drawn.subplots(*shape, squeeze=False)
    for axes in grid.flat[len(numbers) :]:
        axes.set_axis_off()
    most = float(one.weights.max())
    for number, axes in zip(numbers, grid.flat, strict=False):
        image = axes.imshow(one.weights[number], cmap="viridis", vmin=0, vmax=most, aspect="auto")
        _name_symbols(axes, one, f"head {maps.heads[number]}")
    bar = drawn.colorbar(image, ax=grid, location="bottom", shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("attention weight")
    drawn.suptitle(figures.broken(maps.title, 0.6 * drawn.get_figwidth()))


def _name_symbols(axes: "Axes", one: Map, title: str) -> None:
    """A symbol at every row and column."""
    axes.grid(visible=False)
    axes.set_title(title, pad=2)
    axes.set_xticks(range(len(one.keys)), list(one.keys), family="monospace")
    axes.set_yticks(range(len(one.queries)), list(one.queries), family="monospace")
    axes.tick_params(length=0, pad=1)


def _save_rankings(maps: AttentionMaps, context: Context, folder: Path) -> list[Path]:
    """For each relation the head that follows it best, beside its baselines."""
    found = [one for one in maps.rankings if one.heads]
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        for row, ranking in enumerate(found):
            _draw_ranking(axes, ranking, row)
        names = [f"{one.relation} ({one.best.layer}.{one.best.head})" for one in found]
        axes.set_yticks(range(len(found)), [figures.broken(name, 1.15) for name in names])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("attention on the related positions")
        for name, look in MARKS.items():
            axes.plot([], [], linestyle="none", label=name, **look)
        title = "The best candidate (layer.head)\nto follow each relation"
        drawn.legend(loc="outside upper center", ncols=2, title=title)
        below = figures.caption(
            drawn,
            "Blue where the interval is above the largest baseline by more than heads with initial "
            f"weights are, and by more than {100 * LEAST_MARGIN:g} points; grey where not. "
            "Intervals by bootstrap over questions, for all heads and relations together; none of "
            f"fewer than {FEWEST} questions. "
            f"{context.caption(maps.seed)}",
        )
        drawn.set_figheight(0.28 * len(found) + below + 1.3)
        return figures.save(drawn, folder, "attention-relations")


MARKS: Mapping[str, Mapping[str, Any]] = {
    "this head": {"marker": "o", "color": figures.COLOURS[0], "markersize": 5},
    "attending evenly": {"marker": "|", "color": "black", "markersize": 9},
    "on what others relate to": {"marker": "x", "color": figures.COLOURS[5], "markersize": 5},
    "by character, distance": {"marker": "+", "color": figures.COLOURS[2], "markersize": 7},
    "like what is skipped": {"marker": "1", "color": figures.COLOURS[3], "markersize": 7},
    "to exceed": {"marker": "$]$", "color": "black", "markersize": 7},
}


def _draw_ranking(axes: "Axes", ranking: Ranking, row: int) -> None:
    """The best head's mass with its interval, and all that it is set against."""
    best = ranking.best
    colour = figures.COLOURS[0] if best.is_clear else GREY
    if best.interval is not None:
        ends = [best.baseline + end for end in best.interval]
        axes.plot(ends, [row, row], color=colour, linewidth=3, alpha=0.35)
    to_exceed = best.baseline + ranking.to_exceed
    places = (best.mass, best.even, best.exchanged, best.by_text, best.skipped, to_exceed)
    for place, look in zip(places, MARKS.values(), strict=True):
        if place is None:
            continue
        axes.plot(place, row, **(look if place is not best.mass else {**look, "color": colour}))
