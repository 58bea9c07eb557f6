"""Where heads look (section 5.2 of the paper, figure 3), and which of them follow a relation.

The paper's authors found a head whose denominators attend to their division by looking. `search`
finds such heads: it ranks all of the encoder by how well they follow each relation of expressions.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.errors import SettingsError
from tp_transformer.interpret import following
from tp_transformer.interpret.choices import chosen_heads, chosen_questions
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.following import Following, Ranking
from tp_transformer.interpret.outcome import Context, Values, write
from tp_transformer.interpret.record import (
    CROSS,
    DECODER,
    ENCODER,
    START,
    Floats,
    Sample,
    chosen_layer,
    fresh,
    point,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.interpret.roles import SIDE_COLOURS
from tp_transformer.interpret.structure import RELATIONS, SIDE, labels
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import FEWEST
from tp_transformer.settings import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIVEN = (
    "What attends is what the decoder has read: the right answer, which it is given. At each "
    "symbol it predicts the next."
)
SHOWN = 3  # questions, as in the paper's figure
# Models with initial weights. Beside 3, one more such model seemed to follow 1 relation of 45 (of
# small models, 128 questions); beside 9, 1 of 240.
INITIAL_DRAWS = 9


@dataclass(frozen=True, kw_only=True)
class Map:
    """The attention of chosen heads for one question."""

    question: str
    answer: str
    queries: str  # a character for each position that attends
    keys: str  # and for each that is attended to
    weights: Floats  # (head, query, key)


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Maps of some questions, and in the encoder the heads that follow each relation."""

    where: str
    layer: int
    heads: tuple[int, ...]
    maps: tuple[Map, ...]
    rankings: tuple[Ranking, ...]  # empty but for the encoder

    @property
    def title(self) -> str:
        """Which attention it is."""
        place = {
            ENCODER: "encoder self-attention",
            DECODER: "decoder self-attention",
            CROSS: "attention of the decoder to the question",
        }[self.where]
        return f"{place}, layer {self.layer}".capitalize()

    @property
    def meaning(self) -> list[str]:
        """Which head follows each relation, if any, beside the baselines."""
        if self.where == ENCODER:
            return [_meaning_of(ranking) for ranking in self.rankings]
        return [f"{self.title}: in figures only, as relations are of the encoder. {GIVEN}"]

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "meaning": self.meaning,
            "where": self.where,
            "layer": self.layer,
            "heads": list(self.heads),
            "maps": [asdict(one) for one in self.maps],
            "rankings": [asdict(one) for one in self.rankings],
        }


def _meaning_of(ranking: Ranking) -> str:
    if not ranking.heads:
        return f"{ranking.relation}: no question has it."
    best = ranking.best
    head = f"{best.layer}.{best.head}"
    subject = f"The best candidate, head {head},"
    if best.interval is None:
        n = ranking.n_questions
        questions = "1 question has" if n == 1 else f"{n} questions have"
        said = f"{questions} it, too few to say whether a head follows it ({FEWEST} are needed)"
    elif not best.is_clear:
        said = "no head follows it"
    else:
        said, subject = f"followed by head {head}", "It"
        if others := len(ranking.clear) - 1:
            said += f" and {others} more"
    return f"{ranking.relation}: {said}. {subject} {_numbers(best, ranking)}"


def _numbers(one: Following, ranking: Ranking) -> str:
    """The mass, the baselines and what is left, so that the numbers add up."""
    interval = ""
    if one.interval is not None:
        interval = " ({:z.1f} to {:z.1f})".format(*(100 * end for end in one.interval))
    return (
        f"has {one.mass:.1%} of its attention on what is related, where chance has "
        f"{one.baseline:.1%}, the largest of {one.even:.1%} (evenly), {one.exchanged:.1%} (on what "
        f"others relate to) and {one.by_distance:.1%} (by distance alone): {100 * one.margin:z.1f} "
        f"points more{interval}; with initial weights up to {100 * ranking.initial:z.1f}. Its most "
        f"attended is a related one in {one.hits:.0%} of {ranking.n_positions:,} positions."
    )


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    where: str = ENCODER,
    layer: int = -1,
    head: int | None = None,
    relation: str | None = None,
    shown: int = SHOWN,
    seed: int = 0,
) -> AttentionMaps:
    """The maps of a layer's heads, or of one, for a few questions; the search in the encoder.

    Questions with fractions of fractions are shown first. One relation is searched for, or all.
    """
    model = transformer_of(model)
    layer = chosen_layer(model, layer)
    name = point(where, layer, "weights")
    heads = chosen_heads(head, model.config.n_heads)
    numbers = chosen_questions(sample.questions, shown)
    few = sample.some(numbers)
    weights = record(model, few, [name])[name]
    return AttentionMaps(
        where=where,
        layer=layer,
        heads=tuple(heads),
        maps=tuple(
            Map(
                question=question,
                answer=answer,
                queries=symbols(question) if where == ENCODER else START + answer,
                keys=START + answer if where == DECODER else symbols(question),
                weights=own[heads],
            )
            for question, answer, own in zip(few.questions, few.answers, weights, strict=True)
        ),
        rankings=search(model, sample, relation=relation, seed=seed) if where == ENCODER else (),
    )


def search(
    model: AnyModel, sample: Sample, *, relation: str | None = None, seed: int = 0
) -> tuple[Ranking, ...]:
    """Rank all heads of the encoder by how well they follow a relation, or each of them.

    The same search in models with initial weights says how far chance gets a head.
    """
    if relation is not None and relation not in RELATIONS:
        raise SettingsError(
            f"there is no relation {relation!r}{nearest(relation, RELATIONS)}; "
            f"there are: {'; '.join(RELATIONS)}"
        )
    model = transformer_of(model)
    chosen = RELATIONS if relation is None else {relation: RELATIONS[relation]}
    drawn = [
        [following.greatest_margin(one, initial) for one in chosen.values()]
        for initial in (
            _attention(fresh(model, seed + number), sample) for number in range(INITIAL_DRAWS)
        )
    ]
    attention = _attention(model, sample)
    return tuple(
        following.rank(name, one, attention, initial=max(margins), seed=seed)
        for (name, one), margins in zip(chosen.items(), zip(*drawn, strict=True), strict=True)
    )


def _attention(model: Transformer, sample: Sample) -> following.Attention:
    """What all heads of the encoder attend to."""
    names = [point(ENCODER, number, "weights") for number in range(model.config.n_layers)]
    found = record(model, sample, names)
    weights = [np.stack(layers) for layers in zip(*(found[name] for name in names), strict=True)]
    return following.Attention.of(weights, [parse(question) for question in sample.questions])


# The figures.

FAINTEST = 0.05  # weights below are not drawn as lines
COLUMN, PAGE = 3.3, 7.0  # inches, the widths that figures are printed at
SMALLEST = 6.0  # points that can be read in print
PER_POINT = 1 / 86  # inches across for a point of a character in a row, with room between
NEXT_TO, UNDER = 0.073, 0.09  # inches from a symbol of the smallest size to the next
GREY = "#909090"


def save(maps: AttentionMaps, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the figures; returns the files."""
    folder = Path(folder)
    name = f"attention-{maps.where}"
    files = [write(folder, name, maps.to_values(), context)]
    for number in range(len(maps.heads)):
        files += _save_rows(maps, number, context, folder)
    files += _save_heat(maps, context, folder)
    if any(ranking.heads for ranking in maps.rankings):
        files += _save_rankings(maps.rankings, context, folder)
    return files


@dataclass(frozen=True)
class _Layout:
    """The size of rows of characters, in inches and in points."""

    across: int  # characters

    @property
    def width(self) -> float:
        """A column where there is room for its characters, else a page; more if it must be."""
        if self.across * 9.0 * PER_POINT <= COLUMN:
            return COLUMN
        return max(PAGE, self.across * SMALLEST * PER_POINT)

    @property
    def unit(self) -> float:
        """The inches for a character; few are not drawn farther apart."""
        return min(0.2, self.width / self.across)

    @property
    def size(self) -> float:
        """The points of a character."""
        return min(9.0, self.unit / PER_POINT)

    @property
    def deep(self) -> float:
        """The height of a question's two rows and the lines between, in characters."""
        return min(7.5, max(4.5, self.across / 4))


def _save_rows(maps: AttentionMaps, number: int, context: Context, folder: Path) -> list[Path]:
    """Figure 3: what is attended to above, what attends below, a line for each weight."""
    head = maps.heads[number]
    layout = _Layout(max(max(len(one.keys), len(one.queries)) for one in maps.maps))
    height = len(maps.maps) * layout.unit * layout.deep + 0.9
    with figures.figure(layout.width, height) as (drawn, axes):
        axes.set_axis_off()
        spare = layout.width / layout.unit - layout.across
        axes.set_xlim(-spare / 2, layout.across + spare / 2)
        axes.set_ylim(layout.deep * len(maps.maps), 0)
        for row, one in enumerate(maps.maps):
            _draw_rows(axes, one, one.weights[number], row, layout, maps.where == ENCODER)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        drawn.suptitle(f"{maps.title}, head {head}", fontsize=8)
        reading = "Numerators are blue, denominators gold." if maps.where == ENCODER else GIVEN
        figures.caption(
            drawn,
            f"Each symbol below takes information from symbols above. {reading} {context.caption}",
        )
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
    most = max(len(one.keys), len(one.queries))
    above, below = (most - len(one.keys)) / 2 + 0.5, (most - len(one.queries)) / 2 + 0.5
    upper, lower = layout.deep * row + 0.6, layout.deep * (row + 1) - 1.4
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
    lines = LineCollection(
        [
            [(key + above, upper + 0.6), (query + below, lower - 0.6)]
            for query, key in zip(queries, keys, strict=True)
        ],
        colors=[colours.get(int(query), "#606060") for query in queries],
        alpha=np.minimum(0.1 + own, 1.0),
        linewidths=0.4 + 1.6 * own,
    )
    axes.add_collection(lines)


def _query_colours(one: Map) -> dict[int, str]:
    expression = parse(one.question)
    if expression is None:
        return {}
    sides = labels(expression)[SIDE]
    return {at: SIDE_COLOURS[side] for at, side in enumerate(sides) if side is not None}


def _save_heat(maps: AttentionMaps, context: Context, folder: Path) -> list[Path]:
    """All chosen heads for the shortest of the questions: rows attend, columns are attended to."""
    one = min(maps.maps, key=lambda each: len(each.keys))
    n = len(maps.heads)
    wide, tall = NEXT_TO * len(one.keys), max(UNDER * len(one.queries), 0.3)
    width = COLUMN if min(n, 4) * wide <= COLUMN - 1 else max(PAGE, wide + 1)
    rows = -(-n // max(1, min(4, int((width - 1) / wide))))
    with figures.blank(width, rows * (tall + 0.35) + 1.1) as drawn:
        grid: Any = drawn.subplots(rows, -(-n // rows), squeeze=False)
        for axes in grid.flat[n:]:
            axes.set_axis_off()
        most = float(one.weights.max())
        for head, weights, axes in zip(maps.heads, one.weights, grid.flat, strict=False):
            image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=most, aspect="auto")
            _name_symbols(axes, one, f"head {head}")
        bar = drawn.colorbar(image, ax=grid, shrink=0.9, pad=0.01)
        bar.set_label("attention weight", fontsize=7)
        bar.ax.tick_params(labelsize=SMALLEST)
        drawn.suptitle(maps.title, fontsize=8)
        reading = "" if maps.where == ENCODER else f"{GIVEN} "
        figures.caption(drawn, f"Rows attend to columns. {reading}{context.caption}")
        return figures.save(drawn, folder, f"attention-{maps.where}-layer{maps.layer}")


def _name_symbols(axes: "Axes", one: Map, title: str) -> None:
    """A symbol at every row and column."""
    axes.grid(visible=False)
    axes.set_title(title, fontsize=7, pad=2)
    axes.set_xticks(range(len(one.keys)), list(one.keys), family="monospace")
    axes.set_yticks(range(len(one.queries)), list(one.queries), family="monospace")
    axes.tick_params(length=0, labelsize=SMALLEST, pad=1)


def _save_rankings(rankings: tuple[Ranking, ...], context: Context, folder: Path) -> list[Path]:
    """For each relation the head that follows it best, beside its baselines."""
    found = [one for one in rankings if one.heads]
    with figures.figure(PAGE, 1.5 + 0.27 * len(found)) as (drawn, axes):
        for row, ranking in enumerate(found):
            _draw_ranking(axes, ranking, row)
        axes.set_yticks(
            range(len(found)),
            [f"{one.relation} ({one.best.layer}.{one.best.head})" for one in found],
        )
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("attention on the related positions")
        for name, look in MARKS.items():
            axes.plot([], [], linestyle="none", label=name, **look)
        axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=5, fontsize=7)
        drawn.suptitle("The best candidate (layer.head) to follow each relation", fontsize=9)
        figures.caption(
            drawn,
            "Blue where the interval is above the largest baseline and what heads with initial "
            "weights exceed theirs by; grey where not. Intervals by bootstrap over questions, for "
            f"all heads together; none of fewer than {FEWEST} questions. {context.caption}",
        )
        return figures.save(drawn, folder, "attention-relations")


MARKS: Mapping[str, Mapping[str, Any]] = {
    "this head": {"marker": "o", "color": figures.COLOURS[0], "markersize": 5},
    "attending evenly": {"marker": "|", "color": "black", "markersize": 9},
    "on what others relate to": {"marker": "x", "color": figures.COLOURS[5], "markersize": 5},
    "by distance alone": {"marker": "+", "color": figures.COLOURS[2], "markersize": 7},
    "to exceed": {"marker": "$]$", "color": "black", "markersize": 7},
}


def _draw_ranking(axes: "Axes", ranking: Ranking, row: int) -> None:
    """The best head's mass with its interval, and all that it is set against."""
    best = ranking.best
    colour = figures.COLOURS[0] if best.is_clear else GREY
    if best.interval is not None:
        ends = [best.baseline + end for end in best.interval]
        axes.plot(ends, [row, row], color=colour, linewidth=3, alpha=0.35)
    to_exceed = best.baseline + max(ranking.initial, 0.0)
    places = (best.mass, best.even, best.exchanged, best.by_distance, to_exceed)
    for place, look in zip(places, MARKS.values(), strict=True):
        axes.plot(place, row, **(look if place is not best.mass else {**look, "color": colour}))
