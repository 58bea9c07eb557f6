"""The figures of roles: questions with their clusters (figure 2 of the paper), and all scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.interpret.choices import chosen_questions
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.roles_result import HeadRoles, LabelSummary, Roles
from tp_transformer.interpret.structure import DENOMINATOR, NUMERATOR, SIDE, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6  # questions in a figure
MARGIN = 0.05  # inches around what is drawn
DIGIT = 0.055  # inches across a digit of the smallest size, with room around two
PITCH = 2.5  # squares from a line of symbols to the next
COLOUR_MAP = "viridis"  # ordered in lightness, for colour-blind readers too
SIDE_COLOURS = {NUMERATOR: figures.COLOURS[0], DENOMINATOR: figures.COLOURS[1]}  # as in the paper


def draw(roles: Roles, context: Context, folder: Path) -> list[Path]:
    """A figure of questions for each head, and one of all scores; returns the files."""
    files = []
    for head in roles.heads:
        files += _save_questions(roles, head, context, folder)
    if any(score.probe for score in roles.scores):
        files += _save_structure(roles, context, folder)
    return files


def _save_questions(roles: Roles, head: HeadRoles, context: Context, folder: Path) -> list[Path]:
    """Figure 2: questions as rows of characters with the cluster of each position."""
    across = _in_line(roles.n_clusters)
    unit = (figures.COLUMN - 2 * MARGIN) / across
    lines = [
        (number, start)
        for number in chosen_questions(roles.questions, SHOWN, in_line=across)
        for start in range(0, len(symbols(roles.questions[number])), across)
    ]
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        axes.set_axis_off()
        for row, (number, start) in enumerate(lines):
            _draw_line(axes, roles, head, number, slice(start, start + across), PITCH * row)
        down = _draw_names(axes, roles, head, PITCH * len(lines), unit)
        axes.set_xlim(-0.1, across + 0.1)
        axes.set_ylim(down, -0.1)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        title = f"{roles.vectors} clusters of head {head.head}, encoder layer {roles.layer}"
        drawn.suptitle(title.capitalize())
        legend = (
            "Squares below: clusters with a clear name."
            if any(head.names)
            else "No cluster has a clear name."
        )
        below = figures.caption(
            drawn,
            f"Blue: numerator, gold: denominator, by the parse. {legend} "
            f"{context.caption(roles.seed)}",
        )
        drawn.set_figheight(down * unit + below + 0.3)
        return figures.save(drawn, folder, f"roles-layer{roles.layer}-head{head.head}")


def _in_line(n_clusters: int) -> int:
    """How many squares a column has room for, each with the number of its cluster."""
    digits = max(2, len(str(n_clusters - 1)))
    return int((figures.COLUMN - 2 * MARGIN) / (digits * DIGIT))


def _draw_line(
    axes: "Axes", roles: Roles, head: HeadRoles, number: int, part: slice, y: float
) -> None:
    """One line of a question: its characters, below them the squares, around them the sides."""
    question = roles.questions[number]
    for x, character in enumerate(symbols(question)[part]):
        look: dict[str, Any] = {"family": "monospace", "fontsize": 7.5}
        axes.text(x + 0.5, y + 0.5, character, ha="center", va="center", **look)
    for x, cluster in enumerate(head.assigned[number][part]):
        _draw_square(axes, x, y + 1, int(cluster), roles.n_clusters)
    expression = parse(question)
    if expression is not None:
        for first, last, side in _runs(labels(expression)[SIDE][part]):
            _outline(axes, first, y, last - first, SIDE_COLOURS[side])


def _runs(values: list[str | None]) -> list[tuple[int, int, str]]:
    """The stretches of equal values that are not None: first, after the last, value."""
    found: list[tuple[int, int, str]] = []
    for at, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][1:] == (at, value):
            found[-1] = (found[-1][0], at + 1, value)
        else:
            found.append((at, at + 1, value))
    return found


def _draw_names(axes: "Axes", roles: Roles, head: HeadRoles, y: float, unit: float) -> float:
    """The squares of the clusters that have a name, in two columns; returns where they end."""
    named = [(number, name) for number, name in enumerate(head.names) if name is not None]
    middle = -(-len(named) // 2)
    across = figures.COLUMN / 2
    ends = [y]
    for x, column in ((0.0, named[:middle]), (across / unit, named[middle:])):
        end = y
        for number, name in column:
            _draw_square(axes, x, end, number, roles.n_clusters)
            text = f"{name} ({100 * name.purity:.0f}% of {name.n_positions})"
            lines = figures.broken(text, across - 2 * unit)
            look: dict[str, Any] = {"fontsize": figures.SMALLEST, "linespacing": 1.1}
            axes.text(x + 1.3, end + 0.1, lines, va="top", **look)
            end += 1.15 + lines.count("\n") * figures.PER_LINE / unit
        ends.append(end)
    return max(ends)


def _draw_square(axes: "Axes", x: float, y: float, number: int, n_clusters: int) -> None:
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    share = number / max(n_clusters - 1, 1)
    colour = mpl.colormaps[COLOUR_MAP](share)
    axes.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, color=colour, linewidth=0))
    ink = "black" if share > 0.55 else "white"
    look: dict[str, Any] = {"color": ink, "fontsize": figures.SMALLEST}
    axes.text(x + 0.5, y + 0.5, str(number), ha="center", va="center_baseline", **look)


def _outline(axes: "Axes", x: float, y: float, width: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y - 0.05), width, 2.1, fill=False, edgecolor=colour, linewidth=1.2)
    )


# The scores above controls: what is compared, and in which unit.
SCORES = (
    ("clusters above\ncharacters", "mutual\ninformation"),
    ("probe above\nuntrained", "accuracy"),
    ("probe above\nbest reader", "accuracy"),
)


def _save_structure(roles: Roles, context: Context, folder: Path) -> list[Path]:
    """For every label, head and layer: information above characters', probes above controls."""
    scored = [one for one in roles.labels if one.obstacle is None]
    tall = max(0.5, 0.1 * roles.n_layers)
    reach = max(one.best_reach for one in scored)
    with figures.blank(figures.COLUMN, 1.0) as drawn:
        grid: Any = drawn.subplots(
            len(scored), len(SCORES), squeeze=False, sharex=True, sharey=True
        )
        for column, values, score in zip(
            grid.T, _above_controls(roles, scored), SCORES, strict=True
        ):
            _heat_column(drawn, column, values, *score)
        for axes, one in zip(grid[:, 0], scored, strict=True):
            axes.set_ylabel(f"{one.name}\nlayer")
        drawn.suptitle(f"Structure in the {roles.vectors} vectors of the encoder")
        below = figures.caption(
            drawn,
            "Normalised mutual information of clusters and labels, above that of characters and "
            "labels; accuracy of a linear probe on questions held out, above that of the best head "
            "with initial weights, and above the best linear reader of the text (up to "
            f"{reach} characters on each side). {context.caption(roles.seed)}",
        )
        drawn.set_figheight(len(scored) * (tall + 0.06) + below + 1.15)
        return figures.save(drawn, folder, "roles-structure")


def _above_controls(roles: Roles, scored: list[LabelSummary]) -> npt.NDArray[np.float64]:
    """Scores above controls, (score, label, layer, head): the clusters', then the probe's twice."""
    found = np.zeros((3, len(scored), roles.n_layers, roles.n_heads))
    row = {one.name: i for i, one in enumerate(scored)}
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
    drawn: "Figure", column: Any, values: npt.NDArray[np.float64], title: str, unit: str
) -> None:
    """A heat map of heads and layers for each label, and one scale for all."""
    reach = max(0.05, float(np.abs(values).max()))
    for axes, own in zip(column, values, strict=True):
        image = axes.imshow(own, cmap="PuOr", vmin=-reach, vmax=reach, aspect="auto")
        axes.grid(visible=False)
        axes.set_yticks(figures.every(own.shape[0], 6))
        axes.set_xticks(figures.every(own.shape[1], 8))
        axes.tick_params(length=0, pad=1)
    column[0].set_title(title, fontsize=figures.SMALLEST)
    column[-1].set_xlabel("head")
    ticks = [-0.8 * reach, 0, 0.8 * reach]
    bar = drawn.colorbar(
        image, ax=list(column), location="bottom", aspect=10, pad=0.02, ticks=ticks
    )
    bar.ax.set_xticklabels([f"{tick:+.2f}" if tick else "0" for tick in ticks])
    bar.set_label(unit, fontsize=figures.SMALLEST)
