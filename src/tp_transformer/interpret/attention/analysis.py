"""Attention maps (section 5.2 of the paper, figure 3), and the heads that follow a relation.

The paper's authors found by inspection a head whose denominators attend to their division. `search`
finds such heads: it ranks all heads of the encoder by how well they follow each relation. The
figures are rows of characters (figure 3), heat maps, and the best head for each relation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tp_transformer import figures
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.interpret.analyses import (
    AttentionOptions,
    head_indices,
    layer_index,
)
from tp_transformer.interpret.attention import following
from tp_transformer.interpret.attention.following import (
    LEAST_MARGIN,
    Following,
    ModelAttention,
    Ranking,
)
from tp_transformer.interpret.core.chart import ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.record import (
    DECODER,
    ENCODER,
    TITLES,
    Activations,
    Floats,
    point,
    record,
    untrained_models,
)
from tp_transformer.interpret.core.relations import OF_EXPRESSIONS, RELATIONS
from tp_transformer.interpret.core.result import Context, Result, ResultTable, in_words
from tp_transformer.interpret.core.sample import Sample, token_texts
from tp_transformer.interpret.core.structure import SIDE, labels
from tp_transformer.interpret.roles.clusters import SIDE_COLOURS
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.expressions import parse
from tp_transformer.scoring.statistics import FEWEST, Interval

# Untrained models. With 3, another untrained model seemed to follow 1 relation of 45 (small models,
# 128 questions); with 9, 1 of 240.
INITIAL_DRAWS = 9
FAINTEST = 0.05  # smallest weight that is drawn as a line
PER_POINT = 1 / 86  # inches in a row for each point of the size of a character
NARROWEST = 0.052  # inches for a character of the smallest size in a long row
IN_COLUMN = int(figures.COLUMN / (figures.SMALLEST * PER_POINT))  # characters in a row
TALL = 0.95  # inches from the rows of one question to those of the next


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
    rankings: tuple[Ranking, ...]  # none for the decoder, or if tokens are words

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return f"attention-{self.where}"

    @property
    def title(self) -> str:
        """The attention and the layer."""
        return f"{TITLES[self.where]}, layer {self.layer}"

    def summary(self) -> list[str]:
        if self.where == ENCODER and not self.rankings:
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

    def plot(self) -> "dict[str, figures.Figure]":
        prefix = f"attention-{self.where}-layer{self.layer}"
        plots = {
            f"{prefix}-head{head}": _plot_rows(self, number)
            for number, head in enumerate(self.heads)
        }
        plots[prefix] = _plot_heat(self)
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
    present = {ranking.relation in OF_EXPRESSIONS for ranking in rankings if ranking.heads}
    absent = [name for name in absent if (name in OF_EXPRESSIONS) in present]
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
    return (
        ranking.relation,
        f"{best.layer}.{best.head}",
        f"{100 * best.mass:.1f}",
        f"{100 * best.baseline:.1f} {largest}",
        f"{100 * best.margin:z.1f}",
        in_words(best.interval, "z.1f", 100),
        f"{100 * ranking.threshold:z.1f}",
        f"{100 * best.hits:.0f}",
    )


def _plot_rows(result: AttentionResult, number: int) -> "figures.Figure":
    """Plot keys above, queries below, and a line for each weight, as in figure 3."""
    rows = (tokens for shown in result.maps for tokens in (shown.keys, shown.queries))
    across = max(sum(_widths(tokens)) for tokens in rows)
    # Inches: a column if the characters fit, otherwise a page, or more if necessary.
    width = figures.COLUMN if across <= IN_COLUMN else max(figures.PAGE, across * NARROWEST)
    unit = min(0.2, width / across)  # from one character to the next
    size = min(8.0, max(figures.SMALLEST, unit / PER_POINT))  # of a character, in points
    with figures.figure(width, 1.0) as (drawn, axes):
        axes.set_axis_off()
        axes.set_xlim(-width / unit / 2, width / unit / 2)
        axes.set_ylim(TALL * len(result.maps), 0)
        colours = [
            _query_colours(shown) if result.where == ENCODER else {} for shown in result.maps
        ]
        for row, shown in enumerate(result.maps):
            _draw_rows(axes, shown, shown.weights[number], TALL * row, size, colours[row])
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        title = f"{result.title}, head {result.heads[number]}"
        drawn.suptitle(figures.broken(title, 0.7 * width))
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
    top: float,
    size: float,
    colours: Mapping[int, str],
) -> None:
    from matplotlib.collections import LineCollection

    above, below = _centres(shown.keys), _centres(shown.queries)
    upper, lower = top + 0.1, top + TALL - 0.15
    look: dict[str, Any] = {"family": "monospace", "fontsize": size, "ha": "center", "va": "center"}
    for x, token in zip(above, shown.keys, strict=True):
        axes.text(x, upper, token, **look)
    for at, (x, token) in enumerate(zip(below, shown.queries, strict=True)):
        axes.text(x, lower, token, color=colours.get(at, "black"), **look)
    queries, keys = np.nonzero(weights >= FAINTEST)
    strengths = weights[queries, keys]
    gap = 0.7 * size / 72  # from the middle of a character to the start of its lines
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


def _centres(tokens: Sequence[str]) -> Floats:
    """Return the middle of each token in a row around 0."""
    ends = np.cumsum(_widths(tokens))
    return ends - ends[-1] / 2 - np.array(_widths(tokens)) / 2


def _query_colours(shown: AttentionMap) -> dict[int, str]:
    expression = parse(shown.question)
    if expression is None:
        return {}
    sides = labels(expression)[SIDE]
    return {at: SIDE_COLOURS[side] for at, side in enumerate(sides) if side is not None}


def _plot_heat(result: AttentionResult) -> "figures.Figure":
    """Plot all chosen heads for the shortest question: rows are queries, columns are keys."""
    shortest, n = result.shortest, len(result.heads)
    cells = figures.Cells(shortest.queries, shortest.keys)
    wide = cells.width(cells.smallest)
    width = figures.COLUMN if wide <= figures.COLUMN / min(n, 2) else max(figures.PAGE, wide)
    in_row = min(n, 2 if width == figures.COLUMN else max(1, int(width / wide)))
    n_rows = -(-n // in_row)
    size = cells.size(width / in_row)
    most = float(shortest.weights.max())
    with figures.blank(width, 1.0) as drawn:
        grid: Any = drawn.subplots(n_rows, in_row, squeeze=False)
        for axes in grid.flat[n:]:
            axes.set_axis_off()
        for head, weights, axes in zip(result.heads, shortest.weights, grid.flat, strict=False):
            image = cells.draw(axes, weights, size, most)
            axes.set_title(f"head {head}", pad=2)
        figures.add_weight_bar(drawn, image, grid)
        drawn.suptitle(figures.broken(result.title, 0.6 * width))
        reading = "" if result.where == ENCODER else f"{result.inputs} "
        below = figures.caption(
            drawn, f"The shortest question. Rows attend to columns. {reading}{result.caption}"
        )
        drawn.set_figheight(n_rows * cells.height(size) + below + 0.7)
        return drawn


def _plot_rankings(result: AttentionResult) -> "figures.Figure":
    """Plot the best head for each relation that is there, beside its baselines."""
    rankings = [ranking for ranking in result.rankings if ranking.heads]
    best = [ranking.best for ranking in rankings]
    clear = [_mass(head) if head.is_clear else (None, None) for head in best]
    others = [(None, None) if head.is_clear else _mass(head) for head in best]
    thresholds = [ranking.best.baseline + ranking.threshold for ranking in rankings]
    marks = [
        Marks("this head, clear", look("o", "blue"), *zip(*clear, strict=True)),
        Marks("this head, not clear", look("o", "grey"), *zip(*others, strict=True)),
        Marks("uniform attention", look("|", "black", size=7), [x.even for x in best]),
        Marks("on what others relate to", look("x", "red"), [x.exchanged for x in best]),
        Marks("by character, distance", look("+", "green", size=5), [x.by_text for x in best]),
        Marks("like skipped positions", look("1", "pink", size=5), [x.skipped for x in best]),
        Marks("threshold", look("$]$", "black", size=5), thresholds),
    ]
    return chart(
        [
            ChartPanel(
                rows=[f"{x.relation} ({x.best.layer}.{x.best.head})" for x in rankings], marks=marks
            )
        ],
        title="The best candidate (layer.head) to follow each relation",
        axis="attention on the related positions",
        caption="Clear: the interval exceeds the largest baseline by more than untrained heads do, "
        f"and by more than {100 * LEAST_MARGIN:g} points. Intervals by bootstrap over questions, "
        f"for all heads and relations together; none for fewer than {FEWEST} questions. "
        f"{result.context.caption}",
    )


def _mass(head: Following) -> tuple[float, Interval | None]:
    """Return the attention of a head on related positions, with the interval of its margin."""
    if head.interval is None:
        return head.mass, None
    low, high = head.interval
    return head.mass, (head.baseline + low, head.baseline + high)


def analyse(
    model: Transformer, sample: Sample, options: AttentionOptions, seed: int
) -> AttentionResult:
    """Map the attention of a layer for a few questions; in the encoder, search for relations."""
    where, layer = options.where, layer_index(options.layer, model.config.n_layers)
    name = point(where, layer, "weights")
    heads = head_indices(options.head, model.config.n_heads)
    shown = _shown(model, sample, options)
    weights = record(model, shown, [name])[name]
    *maps, shortest = (
        _map(question, answer, piece[heads], where, model.vocabulary)
        for question, answer, piece in zip(shown.questions, shown.answers, weights, strict=True)
    )
    is_searched = where == ENCODER and not model.vocabulary.is_words
    return AttentionResult(
        context=Context.of(model, sample, seed),
        where=where,
        layer=layer,
        heads=tuple(heads),
        maps=tuple(maps),
        are_given=options.questions is not None,
        shortest=shortest,
        rankings=search(model, sample, options.relation, seed) if is_searched else (),
    )


def _map(
    question: str, answer: str, weights: Activations, where: str, vocabulary: Vocabulary
) -> AttentionMap:
    source, target = token_texts(question, vocabulary), token_texts(answer, vocabulary)[:-1]
    return AttentionMap(
        question=question,
        answer=answer,
        queries=source if where == ENCODER else target,
        keys=target if where == DECODER else source,
        weights=weights,
    )


def _shown(model: Transformer, sample: Sample, options: AttentionOptions) -> Sample:
    """Return the questions to show, followed by the shortest question."""
    if options.questions is None:
        indices = sample.shown(options.shown, n_characters=IN_COLUMN)
    else:
        sample = Sample.of(options.questions, model)
        indices = list(range(len(sample)))
    shortest = min(range(len(sample)), key=lambda index: len(sample.questions[index]))
    return sample.some([*indices, shortest])


def search(
    model: Transformer, sample: Sample, relation: str | None = None, seed: int = 0
) -> tuple[Ranking, ...]:
    """Rank all heads of the encoder by how well they follow one relation, or each of them.

    The same search in untrained models gives the largest margin that occurs without training.
    """
    relations = RELATIONS if relation is None else {relation: RELATIONS[relation]}
    margins = [
        {name: following.largest_margin(name, find, attention) for name, find in relations.items()}
        for attention in (
            _attention(control, sample)
            for control in untrained_models(
                model, seed, INITIAL_DRAWS, "searching untrained models"
            )
        )
    ]
    initial = {name: max(largest[name] for largest in margins) for name in relations}
    return following.rank(relations, _attention(model, sample), initial=initial, seed=seed)


def _attention(model: Transformer, sample: Sample) -> ModelAttention:
    names = [point(ENCODER, layer, "weights") for layer in range(model.config.n_layers)]
    recording = record(model, sample, names)
    weights = [
        np.stack(layers) for layers in zip(*(recording[name] for name in names), strict=True)
    ]
    return ModelAttention.of(weights, sample.parsed)
