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
from tp_transformer.interpret.choices import chosen_heads, chosen_questions
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.following import Ranking, rank
from tp_transformer.interpret.outcome import Context, Values, write
from tp_transformer.interpret.record import (
    START,
    Floats,
    Sample,
    chosen_layer,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.interpret.roles import SIDE_COLOURS
from tp_transformer.interpret.structure import RELATIONS, SIDE, labels
from tp_transformer.model.family import AnyModel
from tp_transformer.settings import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
ATTENTIONS = {
    ENCODER: "encoder.{}.self_attention.weights",
    DECODER: "decoder.{}.self_attention.weights",
    CROSS: "decoder.{}.cross_attention.weights",
}
SHOWN = 3  # questions, as in the paper's figure


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
    def meaning(self) -> list[str]:
        """The head that follows each relation best, beside the baselines."""
        return [_meaning_of(ranking) for ranking in self.rankings]

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
    best = ranking.heads[0]
    other = "" if best.exchanged is None else f", {best.exchanged:.1%} on what others relate to"
    sure = "surely more" if best.is_clear else "not surely more"
    return (
        f"{ranking.relation}: followed most by head {best.layer}.{best.head}, with {best.mass:.1%} "
        f"of its attention, {sure} than chance ({best.even:.1%} if even{other}); its most attended "
        "is a related one in "
        f"{best.hits:.0%} of {ranking.n_positions:,} positions."
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
    if where not in ATTENTIONS:
        raise SettingsError(
            f"there is no attention {where!r}{nearest(where, ATTENTIONS)}; "
            f"there are {', '.join(ATTENTIONS)}"
        )
    layer = chosen_layer(model, layer)
    heads = chosen_heads(head, model.config.n_heads)
    numbers = chosen_questions(sample.questions, shown)
    few = Sample(
        questions=tuple(sample.questions[number] for number in numbers),
        answers=tuple(sample.answers[number] for number in numbers),
        origin=sample.origin,
    )
    name = ATTENTIONS[where].format(layer)
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
    """Rank all heads of the encoder by how well they follow a relation, or each of them."""
    if relation is not None and relation not in RELATIONS:
        raise SettingsError(
            f"there is no relation {relation!r}{nearest(relation, RELATIONS)}; "
            f"there are: {'; '.join(RELATIONS)}"
        )
    n_layers = transformer_of(model).config.n_layers
    names = [ATTENTIONS[ENCODER].format(number) for number in range(n_layers)]
    found = record(model, sample, names)
    weights = [np.stack(layers) for layers in zip(*(found[name] for name in names), strict=True)]
    expressions = [parse(question) for question in sample.questions]
    chosen = RELATIONS if relation is None else {relation: RELATIONS[relation]}
    return tuple(rank(name, one, weights, expressions, seed) for name, one in chosen.items())


# The figures.

FAINTEST = 0.05  # weights below are not drawn as lines
NARROWEST = 24  # characters; fewer are drawn no larger
DEEP = 7.5  # the height of a question's two rows and the lines between, in characters


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


def _title(maps: AttentionMaps) -> str:
    place = {
        ENCODER: "encoder self-attention",
        DECODER: "decoder self-attention",
        CROSS: "attention of the decoder to the question",
    }[maps.where]
    return f"{place}, layer {maps.layer}".capitalize()


def _save_rows(maps: AttentionMaps, number: int, context: Context, folder: Path) -> list[Path]:
    """Figure 3: what is attended to above, what attends below, a line for each weight."""
    head = maps.heads[number]
    across = max(NARROWEST, *(max(len(one.keys), len(one.queries)) for one in maps.maps))
    unit = 7.0 / across  # inches for a character
    with figures.figure(7.0, len(maps.maps) * unit * DEEP + 0.7) as (drawn, axes):
        axes.set_axis_off()
        axes.set_xlim(0, across)
        axes.set_ylim(DEEP * len(maps.maps), 0)
        for row, one in enumerate(maps.maps):
            colours = _query_colours(one) if maps.where == ENCODER else {}
            _draw_rows(axes, one, one.weights[number], row * DEEP, min(9.0, 86 * unit), colours)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        drawn.suptitle(f"{_title(maps)}, head {head}", fontsize=9)
        sides = " Numerators are blue, denominators gold." if maps.where == ENCODER else ""
        figures.caption(
            drawn,
            f"Each symbol below takes information from symbols above.{sides} {context.caption}",
        )
        name = f"attention-{maps.where}-layer{maps.layer}-head{head}"
        return figures.save(drawn, folder, name)


def _draw_rows(
    axes: "Axes",
    one: Map,
    weights: npt.NDArray[np.floating],
    top: float,
    size: float,
    colours: Mapping[int, str],
) -> None:
    """One question: its two rows of characters, and lines of queries in their colours."""
    from matplotlib.collections import LineCollection

    shift = (len(one.keys) - len(one.queries)) / 2  # the shorter row in the middle
    upper, lower = top + 0.6, top + DEEP - 1.6
    look: dict[str, Any] = {"ha": "center", "va": "center", "family": "monospace", "fontsize": size}
    for x, character in enumerate(one.keys):
        axes.text(x + 0.5, upper, character, **look)
    for x, character in enumerate(one.queries):
        axes.text(x + shift + 0.5, lower, character, color=colours.get(x, "black"), **look)
    queries, keys = np.nonzero(weights >= FAINTEST)
    own = weights[queries, keys]
    lines = LineCollection(
        [
            [(key + 0.5, upper + 0.6), (query + shift + 0.5, lower - 0.6)]
            for query, key in zip(queries, keys, strict=True)
        ],
        colors=[colours.get(int(query), "#606060") for query in queries],
        alpha=np.minimum(own, 1.0),
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
    columns = 2 if n == 4 else min(n, 3)
    rows = -(-n // columns)
    width = 3.3 if n == 1 else 7.0
    side = width / columns
    tall = side * min(0.9, max(0.35, len(one.queries) / len(one.keys)))
    most = float(one.weights.max())
    with figures.blank(width, rows * (tall + 0.2) + 0.8) as drawn:
        grid: Any = drawn.subplots(rows, columns, squeeze=False)
        image = None
        size = min(7.0, 0.72 * 72 * side / len(one.keys))
        for number, axes in enumerate(grid.flat):
            if number >= n:
                axes.set_axis_off()
                continue
            image = axes.imshow(
                one.weights[number], cmap="viridis", vmin=0, vmax=most, aspect="auto"
            )
            axes.grid(visible=False)
            axes.set_title(f"head {maps.heads[number]}", fontsize=7, pad=2)
            axes.set_xticks(range(len(one.keys)), list(one.keys), family="monospace")
            axes.set_yticks(range(len(one.queries)), list(one.queries), family="monospace")
            axes.tick_params(length=0, labelsize=size, pad=1)
        if image is not None:
            drawn.colorbar(image, ax=grid, shrink=0.6, pad=0.01).ax.tick_params(labelsize=6)
        drawn.suptitle(_title(maps), fontsize=9)
        figures.caption(drawn, f"Rows attend to columns. {context.caption}")
        return figures.save(drawn, folder, f"attention-{maps.where}-layer{maps.layer}")


def _save_rankings(rankings: tuple[Ranking, ...], context: Context, folder: Path) -> list[Path]:
    """For each relation the head that follows it best, beside its baselines."""
    found = [one for one in rankings if one.heads]
    with figures.figure(7.0, 1.3 + 0.27 * len(found)) as (drawn, axes):
        for row, ranking in enumerate(found):
            best = ranking.heads[0]
            low, high = (best.mass + end - best.margin for end in best.interval)
            colour = figures.COLOURS[0] if best.is_clear else "#909090"
            axes.plot([low, high], [row, row], color=colour, linewidth=3, alpha=0.35)
            axes.plot(best.mass, row, "o", color=colour, markersize=5)
            axes.plot(best.even, row, "|", color="black", markersize=9)
            if best.exchanged is not None:
                axes.plot(best.exchanged, row, "x", color=figures.COLOURS[5], markersize=5)
        axes.set_yticks(
            range(len(found)),
            [f"{one.relation} ({one.heads[0].layer}.{one.heads[0].head})" for one in found],
        )
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("attention on the related positions")
        _add_legend(axes)
        drawn.suptitle("The heads (layer.head) that follow each relation best", fontsize=9)
        figures.caption(
            drawn,
            "Intervals by bootstrap over questions, for all heads together; grey where the margin "
            f"over the baseline is unclear. {context.caption}",
        )
        return figures.save(drawn, folder, "attention-relations")


def _add_legend(axes: "Axes") -> None:
    marks: Mapping[str, Mapping[str, Any]] = {
        "this head": {"marker": "o", "color": figures.COLOURS[0]},
        "attending evenly": {"marker": "|", "color": "black"},
        "on what others are related to": {"marker": "x", "color": figures.COLOURS[5]},
    }
    for name, look in marks.items():
        axes.plot([], [], linestyle="none", label=name, **look)
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3, fontsize=7)
