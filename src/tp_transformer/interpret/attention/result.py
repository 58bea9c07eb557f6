"""The result of the attention analysis: maps, the heads that follow relations, figures.

The figures are rows of characters (figure 3), heat maps, and the best head for each relation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.attention.following import LEAST_MARGIN, Ranking
from tp_transformer.interpret.core import structure
from tp_transformer.interpret.core.record import ENCODER, TITLES
from tp_transformer.interpret.core.result import Result, ResultTable, Values
from tp_transformer.interpret.core.structure import SIDE, labels
from tp_transformer.interpret.core.vectors import Activations, Floats
from tp_transformer.interpret.roles.result import SIDE_COLOURS
from tp_transformer.scoring.expressions import parse
from tp_transformer.scoring.statistics import FEWEST

FAINTEST = 0.05  # smallest weight that is drawn as a line
PER_POINT = 1 / 86  # inches in a row for each point of the size of a character
NARROWEST = 0.052  # inches for a character of the smallest size in a long row
IN_COLUMN = int(figures.COLUMN / (figures.SMALLEST * PER_POINT))  # characters in a row
TALL = 0.95  # inches from the rows of one question to those of the next
HIGHEST = 7.8  # inches of heat maps in a figure as high as a page
GREY = "#909090"
MARKS: Mapping[str, Mapping[str, Any]] = {
    "this head": {"marker": "o", "color": figures.COLOURS[0], "markersize": 5},
    "uniform attention": {"marker": "|", "color": "black", "markersize": 9},
    "on what others relate to": {"marker": "x", "color": figures.COLOURS[5], "markersize": 5},
    "by character, distance": {"marker": "+", "color": figures.COLOURS[2], "markersize": 7},
    "like skipped positions": {"marker": "1", "color": figures.COLOURS[3], "markersize": 7},
    "threshold": {"marker": "$]$", "color": "black", "markersize": 7},
}


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The attention of the chosen heads in one question."""

    question: str
    answer: str
    queries: Sequence[str]  # the character or word at each query position
    keys: Sequence[str]  # the character or word at each key position
    weights: Activations  # (head, query, key)


@dataclass(frozen=True, kw_only=True)
class AttentionResult(Result):
    """Maps of some questions, and for the encoder a ranking of heads for each relation."""

    where: str
    layer: int
    heads: tuple[int, ...]
    maps: tuple[AttentionMap, ...]
    are_given: bool  # whether the maps are of given questions, not of the sample
    shortest: AttentionMap  # of the shortest question
    rankings: tuple[Ranking, ...]  # of the encoder only, between characters
    is_words: bool = False  # whether tokens are words

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return f"attention-{self.where}"

    @property
    def title(self) -> str:
        """The attention and the layer."""
        return f"{TITLES[self.where]}, layer {self.layer}"

    def summary(self) -> list[str]:
        """Return the relations that heads follow, those that none follows, and the rest."""
        if self.where == ENCODER and self.is_words:
            return [
                f"{self.title}: figures only, because relations are between characters of "
                "expressions, and the tokens of this model are words."
            ]
        if self.where == ENCODER:
            return _findings(self.rankings)
        return [
            f"{self.title}: figures only, because relations are between positions of the question. "
            f"{self.inputs}"
        ]

    @property
    def inputs(self) -> str:
        """A sentence on the tokens that attend in the decoder."""
        answer = "the model's own answer" if self.are_given else "the right answer, which is given"
        return f"The decoder reads {answer}; at each token it predicts the next."

    @property
    def caption(self) -> str:
        """The tokens of the maps, and the model and the questions that they are of."""
        if not self.are_given:
            return f"{figures.TOKENS} {self.context.caption}"
        n = len(self.maps)
        origin = "a given question" if n == 1 else f"{n} given questions"
        sample = replace(self.context.sample, origin=origin)
        return f"{figures.TOKENS} {replace(self.context, sample=sample).caption}"

    def tables(self) -> list[ResultTable]:
        """Return the margin of the best head for each relation that is there, and its baselines."""
        rows = tuple(_row(ranking) for ranking in self.rankings if ranking.heads)
        table = ResultTable(
            title="The best head for each relation: its attention on related positions, in %",
            columns=("relation", "head", "mass", "baseline", "margin", "95%", "threshold", "hits"),
            rows=rows,
            note="mass: the attention on related positions. baseline: the largest of uniform "
            "attention, on what others relate to (others), by character and distance (text) and "
            "like skipped positions (skipped). margin: the mass minus the baseline; its interval "
            "must lie above the threshold. hits: positions whose most attended position is a "
            "related one.",
        )
        return [table] if rows else []

    def values(self) -> Values:
        """Return the numbers."""
        values = super().values()
        del values["is_words"]
        return values

    def plot(self) -> "dict[str, figures.Figure]":
        """Plot rows of characters for each head, heat maps of all heads, and the rankings."""
        prefix = f"attention-{self.where}-layer{self.layer}"
        plots = {
            f"{prefix}-head{head}": _plot_rows(self, number)
            for number, head in enumerate(self.heads)
        }
        plots |= _plot_heat(self, prefix)
        if any(ranking.heads for ranking in self.rankings):
            plots["attention-relations"] = _plot_rankings(self)
        return plots


def _findings(rankings: tuple[Ranking, ...]) -> list[str]:
    """Return a line for each kind of finding, with the relations that it is about.

    Relations of expressions are not listed as absent if there is no expression, and others if there
    is no other structure.
    """
    followed, unclear, few, absent = [], [], [], []
    for ranking in rankings:
        name = ranking.relation
        if not ranking.heads:
            absent.append(name)
            continue
        best = ranking.best
        head = f"{best.layer}.{best.head}"
        if best.interval is None:
            few.append(f"{name} ({ranking.n_questions})")
        elif best.is_clear:
            more = f" and {others} more" if (others := len(ranking.clear) - 1) else ""
            followed.append(f"{name} (head {head}{more})")
        else:
            unclear.append(name)
    if rankings and len(absent) == len(rankings):
        return [
            f"No question has any of the {len(absent)} relations, which are of expressions, lists, "
            "digits and polynomials."
        ]
    present = {ranking.relation in structure.RELATIONS for ranking in rankings if ranking.heads}
    absent = [name for name in absent if (name in structure.RELATIONS) in present]
    kinds = {
        "Followed": followed,
        "Followed by no head beyond the baselines": unclear,
        f"In too few questions to say whether a head follows it ({FEWEST} are needed)": few,
        "In no question": absent,
    }
    return [f"{kind}: {'; '.join(names)}." for kind, names in kinds.items() if names]


def _row(ranking: Ranking) -> tuple[str, ...]:
    best = ranking.best
    baselines = {
        "uniform": best.even,
        "others": best.exchanged,
        "text": best.by_text,
        "skipped": best.skipped or 0.0,
    }
    largest = max(baselines, key=lambda name: baselines[name])
    interval = best.interval and "{:z.1f} to {:z.1f}".format(*(100 * end for end in best.interval))
    return (
        ranking.relation,
        f"{best.layer}.{best.head}",
        f"{100 * best.mass:.1f}",
        f"{100 * best.baseline:.1f} {largest}",
        f"{100 * best.margin:z.1f}",
        interval or "-",
        f"{100 * ranking.threshold:z.1f}",
        f"{100 * best.hits:.0f}",
    )


@dataclass(frozen=True)
class _Layout:
    """The size of rows of characters."""

    across: int  # characters

    @property
    def width(self) -> float:
        """In inches: a column if the characters fit, otherwise a page, or more if necessary."""
        if self.across <= IN_COLUMN:
            return figures.COLUMN
        return max(figures.PAGE, self.across * NARROWEST)

    @property
    def unit(self) -> float:
        """Inches from one character to the next."""
        return min(0.2, self.width / self.across)

    @property
    def size(self) -> float:
        """The size of a character in points."""
        return min(8.0, max(figures.SMALLEST, self.unit / PER_POINT))


def _plot_rows(result: AttentionResult, number: int) -> "figures.Figure":
    """Plot keys above, queries below, and a line for each weight, as in figure 3."""
    rows = (tokens for shown in result.maps for tokens in (shown.keys, shown.queries))
    layout = _Layout(max(sum(_widths(tokens)) for tokens in rows))
    with figures.figure(layout.width, 1.0) as (drawn, axes):
        axes.set_axis_off()
        axes.set_xlim(0, layout.width / layout.unit)
        axes.set_ylim(TALL * len(result.maps), 0)
        has_sides = result.where == ENCODER and not result.is_words
        colours = [_query_colours(shown) if has_sides else {} for shown in result.maps]
        for row, shown in enumerate(result.maps):
            _draw_rows(axes, shown, shown.weights[number], row, layout, colours[row])
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        title = f"{result.title}, head {result.heads[number]}"
        drawn.suptitle(figures.broken(title, 0.7 * layout.width))
        reading = "" if result.where == ENCODER else f"{result.inputs} "
        if any(colours):
            reading = "Numerators are blue, denominators gold. "
        below = figures.caption(
            drawn,
            "Each token below attends to tokens above; weights below "
            f"{FAINTEST:g} are not drawn. {reading}{result.caption}",
        )
        drawn.set_figheight(TALL * len(result.maps) + below + 0.4)
        return drawn


def _draw_rows(
    axes: "figures.Axes",
    shown: AttentionMap,
    weights: Activations,
    row: int,
    layout: _Layout,
    colours: Mapping[int, str],
) -> None:
    from matplotlib.collections import LineCollection

    middle = layout.width / layout.unit / 2
    above, below = _centres(shown.keys, middle), _centres(shown.queries, middle)
    upper, lower = TALL * row + 0.1, TALL * (row + 1) - 0.15
    look: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "family": "monospace",
        "fontsize": layout.size,
    }
    for x, token in zip(above, shown.keys, strict=True):
        axes.text(x, upper, token, **look)
    for at, (x, token) in enumerate(zip(below, shown.queries, strict=True)):
        axes.text(x, lower, token, color=colours.get(at, "black"), **look)
    queries, keys = np.nonzero(weights >= FAINTEST)
    strengths = weights[queries, keys]
    gap = 0.7 * layout.size / 72  # from the middle of a character to the start of its lines
    lines = LineCollection(
        [
            [(above[key], upper + gap), (below[query], lower - gap)]
            for query, key in zip(queries, keys, strict=True)
        ],
        colors=[colours.get(int(query), "#606060") for query in queries],
        alpha=np.minimum(0.1 + strengths, 1.0),
        linewidths=0.4 + 1.2 * strengths,
    )
    axes.add_collection(lines)


def _widths(tokens: Sequence[str]) -> list[int]:
    """Return the characters that each token takes in a row, with a blank between words."""
    is_words = any(len(token) > 1 for token in tokens)
    return [len(token) + is_words for token in tokens]


def _centres(tokens: Sequence[str], middle: float) -> Floats:
    """Return the middle of each token in a row around `middle`."""
    ends = np.cumsum(_widths(tokens))
    return middle - ends[-1] / 2 + ends - np.array(_widths(tokens)) / 2


def _query_colours(shown: AttentionMap) -> dict[int, str]:
    expression = parse(shown.question)
    if expression is None:
        return {}
    sides = labels(expression)[SIDE]
    return {at: SIDE_COLOURS[side] for at, side in enumerate(sides) if side is not None}


def _plot_heat(result: AttentionResult, prefix: str) -> "dict[str, figures.Figure]":
    """Plot all chosen heads for the shortest question, in figures no higher than a page.

    Rows are queries, columns are keys.
    """
    shown, n = result.shortest, len(result.heads)
    cells = figures.Cells(shown.queries, shown.keys)
    wide = cells.width(cells.smallest)
    width = figures.COLUMN if min(n, 2) * wide <= figures.COLUMN else max(figures.PAGE, wide)
    in_row = min(n, 2) if width == figures.COLUMN else min(n, max(1, int(width / wide)))
    in_row = -(-n // -(-n // in_row))  # as many in every row, if possible
    size = cells.size(width / in_row)
    tall = cells.height(size)
    at_once = in_row * max(1, int(HIGHEST / tall))
    most = float(shown.weights.max())
    reading = "" if result.where == ENCODER else f"{result.inputs} "
    plots = {}
    for first in range(0, n, at_once):
        numbers = range(first, min(first + at_once, n))
        rows = -(-len(numbers) // in_row)
        with figures.blank(width, 1.0) as drawn:
            grid: Any = drawn.subplots(rows, in_row, squeeze=False)
            for axes in grid.flat[len(numbers) :]:
                axes.set_axis_off()
            for number, axes in zip(numbers, grid.flat, strict=False):
                image = cells.draw(axes, shown.weights[number], size, most)
                axes.set_title(f"head {result.heads[number]}", pad=2)
            figures.add_weight_bar(drawn, image, grid)
            drawn.suptitle(figures.broken(result.title, 0.6 * width))
            below = figures.caption(
                drawn, f"The shortest question. Rows attend to columns. {reading}{result.caption}"
            )
            drawn.set_figheight(rows * tall + below + 0.7)
            some = "" if len(numbers) == n else f"-head{numbers[0]}to{numbers[-1]}"
            plots[f"{prefix}{some}"] = drawn
    return plots


def _plot_rankings(result: AttentionResult) -> "figures.Figure":
    rankings = [ranking for ranking in result.rankings if ranking.heads]
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        for row, ranking in enumerate(rankings):
            _draw_ranking(axes, ranking, row)
        names = [
            f"{ranking.relation} ({ranking.best.layer}.{ranking.best.head})" for ranking in rankings
        ]
        axes.set_yticks(range(len(rankings)), [figures.broken(name, 1.15) for name in names])
        axes.set_ylim(len(rankings) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("attention on the related positions")
        for name, look in MARKS.items():
            axes.plot([], [], linestyle="none", label=name, **look)
        title = "The best candidate (layer.head)\nto follow each relation"
        drawn.legend(loc="outside upper center", ncols=2, title=title)
        below = figures.caption(
            drawn,
            "Blue if the interval exceeds the largest baseline by more than untrained heads do, "
            f"and by more than {100 * LEAST_MARGIN:g} points; grey if not. "
            "Intervals by bootstrap over questions, for all heads and relations together; none for "
            f"fewer than {FEWEST} questions. "
            f"{result.context.caption}",
        )
        drawn.set_figheight(0.28 * len(rankings) + below + 1.3)
        return drawn


def _draw_ranking(axes: "figures.Axes", ranking: Ranking, row: int) -> None:
    best = ranking.best
    colour = figures.COLOURS[0] if best.is_clear else GREY
    if best.interval is not None:
        ends = [best.baseline + end for end in best.interval]
        axes.plot(ends, [row, row], color=colour, linewidth=3, alpha=0.35)
    threshold = best.baseline + ranking.threshold
    places = (best.mass, best.even, best.exchanged, best.by_text, best.skipped, threshold)
    for place, look in zip(places, MARKS.values(), strict=True):
        if place is None:
            continue
        axes.plot(place, row, **(look if place is not best.mass else {**look, "color": colour}))
