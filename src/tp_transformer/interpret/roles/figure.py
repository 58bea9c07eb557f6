"""Figures of the roles analysis: questions with their clusters (figure 2), and all scores."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tp_transformer.foundation import figures
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.core.structure import DENOMINATOR, NUMERATOR, SIDE, labels
from tp_transformer.interpret.roles import naming
from tp_transformer.interpret.roles.naming import Name
from tp_transformer.interpret.roles.result import HeadClusters, LabelControls, RolesResult

SHOWN = 6  # questions in a figure
MARGIN = 0.05  # inches around the drawing
DIGIT = 0.055  # inches for a digit of the smallest size, if there are two in a square
MANY = 40  # clusters in a legend, from which on it has more columns and less text
PITCH = 2.5  # squares from one line of characters to the next
SIDE_COLOURS = {NUMERATOR: figures.COLOURS[0], DENOMINATOR: figures.COLOURS[1]}  # as in the paper
# Shades of the clusters whose names have a side, and of the others.
SIDE_SHADES = {
    NUMERATOR: ("Blues", 0.35, 0.75),
    DENOMINATOR: ("YlOrBr", 0.2, 0.5),
    None: ("Greys", 0.06, 0.32),
}

Look = tuple[str, str]  # the colour of a cluster, and that of a text on it


def cluster_looks(names: Sequence[Name | None]) -> list[Look]:
    """Return the look of each cluster: numerators are blue, denominators golden, others grey.

    If no name has a side, every cluster has a colour of its own.
    """
    sides = [None if name is None else name.side for name in names]
    if not any(sides):
        return [figures.qualitative(number) for number in range(len(names))]
    looks = {
        side: iter(figures.shades(*shades, sides.count(side)))
        for side, shades in SIDE_SHADES.items()
    }
    return [next(looks[side]) for side in sides]


def plot(roles: RolesResult) -> "dict[str, figures.Figure]":
    """Plot the questions for each head, and all scores."""
    plots = {
        f"roles-layer{roles.layer}-head{head.head}": _plot_questions(roles, head)
        for head in roles.heads
    }
    if any(score.probe for score in roles.scores):
        plots["roles-structure"] = _plot_structure(roles)
    return plots


def _plot_questions(roles: RolesResult, head: HeadClusters) -> "figures.Figure":
    """Plot questions as rows of characters with the cluster of each position, as in figure 2."""
    sample = roles.context.sample
    digits = max(2, len(str(roles.n_clusters - 1)))
    across = int((figures.COLUMN - 2 * MARGIN) / (digits * DIGIT))  # squares in a line
    unit = (figures.COLUMN - 2 * MARGIN) / across
    lines = [
        (number, start)
        for number in sample.shown(SHOWN, n_characters=across)
        for start in range(0, len(token_characters(sample.questions[number])), across)
    ]
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        axes.set_axis_off()
        for row, (number, start) in enumerate(lines):
            _draw_line(axes, sample, head, number, slice(start, start + across), PITCH * row)
        drawn_clusters = {
            int(cluster)
            for number, start in lines
            for cluster in head.assigned[number][start : start + across]
        }
        down = _draw_legend(axes, roles, head, drawn_clusters, PITCH * len(lines), unit)
        axes.set_xlim(-0.1, across + 0.1)
        axes.set_ylim(down, -0.1)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        are_framed = any(sample.expressions[number] is not None for number, _ in lines)
        frames = "Frames: numerator (blue) and denominator (gold), by the parse. "
        title = f"{roles.vectors} clusters of head {head.head}, encoder layer {roles.layer}"
        drawn.suptitle(title.capitalize())
        below = figures.caption(
            drawn,
            "Squares: the cluster of each token; below, its name or, if none is clear, after ~ its "
            f"most frequent kind of token. {frames if are_framed else ''}{figures.TOKENS} "
            f"{roles.context.caption}",
        )
        drawn.set_figheight(down * unit + below + 0.3)
        return drawn


def _draw_line(
    axes: "figures.Axes", sample: Sample, head: HeadClusters, number: int, part: slice, y: float
) -> None:
    """Draw a line of a question: characters, squares below them, the sides around both."""
    for x, character in enumerate(token_characters(sample.questions[number])[part]):
        look: dict[str, Any] = {"family": "monospace", "fontsize": 7.5}
        axes.text(x + 0.5, y + 0.5, character, ha="center", va="center", **look)
    looks = cluster_looks(head.names)
    for x, cluster in enumerate(head.assigned[number][part]):
        _draw_square(axes, x, y + 1, int(cluster), looks[cluster])
    expression = sample.expressions[number]
    if expression is not None:
        for first, last, side in _runs(labels(expression)[SIDE][part]):
            _outline(axes, first, y, last - first, SIDE_COLOURS[side])


def _runs(values: list[str | None]) -> list[tuple[int, int, str]]:
    """Return the runs of equal values other than None: start, end, value."""
    found: list[tuple[int, int, str]] = []
    for at, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][1:] == (at, value):
            found[-1] = (found[-1][0], at + 1, value)
        else:
            found.append((at, at + 1, value))
    return found


def _draw_legend(
    axes: "figures.Axes",
    roles: RolesResult,
    head: HeadClusters,
    drawn: set[int],
    y: float,
    unit: float,
) -> float:
    """Draw drawn and named clusters in columns, ordered by side; return where they end."""
    named = {number: name.side for number, name in enumerate(head.names) if name is not None}
    order, looks = list(SIDE_SHADES), cluster_looks(head.names)
    entries = sorted(drawn | set(named), key=lambda own: (order.index(named.get(own)), own))
    n_columns = 2 if len(entries) <= MANY else 4
    across = figures.COLUMN / n_columns
    ends = [y]
    for place in range(n_columns):
        x, end = place * across / unit, y
        n_rows = -(-len(entries) // n_columns)
        for number in entries[place * n_rows : (place + 1) * n_rows]:
            _draw_square(axes, x, end, number, looks[number])
            text = _describe(roles, head, number, with_share=len(entries) <= MANY)
            lines = figures.broken(text, across - 2 * unit)
            look: dict[str, Any] = {"fontsize": figures.SMALLEST, "linespacing": 1.1}
            axes.text(x + 1.3, end + 0.1, lines, va="top", **look)
            end += 1.15 + lines.count("\n") * figures.PER_LINE / unit
        ends.append(end)
    return max(ends)


def _describe(roles: RolesResult, head: HeadClusters, number: int, *, with_share: bool) -> str:
    """Return the name of a cluster, or its most frequent kind of token if it has no clear name."""
    name = head.names[number]
    if name is not None:
        return f"{name} ({100 * name.purity:.0f}% of {name.n_positions})"
    kinds = Counter(
        naming.kind(character)
        for question, assigned in zip(roles.context.sample.questions, head.assigned, strict=True)
        for character, cluster in zip(token_characters(question), assigned, strict=True)
        if cluster == number
    )
    ((kind, count),) = kinds.most_common(1)
    share = f" ({100 * count / kinds.total():.0f}% of {kinds.total()})" if with_share else ""
    return f"~ {kind}{share}"


def _draw_square(axes: "figures.Axes", x: float, y: float, number: int, look: Look) -> None:
    from matplotlib.patches import Rectangle

    colour, ink = look
    axes.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, color=colour, linewidth=0))
    text: dict[str, Any] = {"color": ink, "fontsize": figures.SMALLEST}
    axes.text(x + 0.5, y + 0.5, str(number), ha="center", va="center_baseline", **text)


def _outline(axes: "figures.Axes", x: float, y: float, width: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y - 0.05), width, 2.1, fill=False, edgecolor=colour, linewidth=1.2)
    )


PANEL = 0.75  # inches, the width of a heat map

# Differences between scores and controls, with their units.
SCORES = (
    ("clusters above\ncharacters", "mutual\ninformation"),
    ("probe above\nuntrained", "accuracy"),
    ("probe above\nbest text probe", "accuracy"),
)


def _plot_structure(roles: RolesResult) -> "figures.Figure":
    """Plot the difference between scores and controls for every label, head and layer."""
    scored = roles.scored
    # Square cells, in rows that are high enough for the name of a label.
    tall = max(0.58, min(figures.Cells.LARGEST, PANEL / roles.n_heads) * roles.n_layers)
    reach = max(label.best_reach for label in scored)
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid: Any = drawn.subplots(
            len(scored), len(SCORES), squeeze=False, sharex=True, sharey=True
        )
        for column, values, score in zip(
            grid.T, _above_controls(roles, scored), SCORES, strict=True
        ):
            _heat_column(drawn, column, values, *score)
        for axes, label in zip(grid[:, 0], scored, strict=True):
            axes.set_ylabel(f"{label.name}\nlayer")
        drawn.suptitle(f"Structure in the {roles.vectors} vectors of the encoder")
        below = figures.caption(
            drawn,
            "Normalised mutual information of clusters and labels, minus that of characters and "
            "labels; accuracy of a linear probe on held-out questions, minus that of the best head "
            "of untrained models, and minus that of the best text probe (up to "
            f"{reach} characters on each side). {roles.context.caption}",
        )
        drawn.set_figheight(len(scored) * (tall + 0.06) + below + 1.15)
        return drawn


def _above_controls(roles: RolesResult, scored: list[LabelControls]) -> Floats:
    """Return scores minus controls, in the order of SCORES: (score, label, layer, head)."""
    found = np.zeros((3, len(scored), roles.n_layers, roles.n_heads))
    row = {label.name: i for i, label in enumerate(scored)}
    for score in roles.scores:
        if score.information is None or score.probe is None:
            continue
        label = scored[row[score.label]]
        characters = label.characters.score if label.characters is not None else 0.0
        found[:, row[score.label], score.layer, score.head] = (
            score.information.score - characters,
            score.probe.accuracy - label.best_initial.accuracy,
            score.probe.accuracy - label.best_reader.accuracy,
        )
    return found


def _heat_column(
    drawn: "figures.Figure", column: Any, values: Floats, title: str, unit: str
) -> None:
    """Draw a heat map of heads and layers for each label, with a common scale."""
    reach = max(0.05, float(np.abs(values).max()))
    for axes, own in zip(column, values, strict=True):
        image = axes.imshow(own, cmap="PuOr", vmin=-reach, vmax=reach, aspect="equal")
        axes.grid(visible=False)
        axes.set_yticks(figures.tick_indices(own.shape[0], 6))
        axes.set_xticks(figures.tick_indices(own.shape[1], 8))
        axes.tick_params(length=0, pad=1)
    column[0].set_title(title, fontsize=figures.SMALLEST)
    column[-1].set_xlabel("head")
    ticks = [-0.8 * reach, 0, 0.8 * reach]
    bar = drawn.colorbar(
        image, ax=list(column), location="bottom", aspect=10, pad=0.02, ticks=ticks
    )
    bar.ax.set_xticklabels([f"{tick:+.2f}" if tick else "0" for tick in ticks])
    bar.set_label(unit, fontsize=figures.SMALLEST)
