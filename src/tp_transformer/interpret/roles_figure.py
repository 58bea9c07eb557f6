"""The figures of roles: questions with their clusters (figure 2 of the paper), and all scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.interpret.choices import PER_LINE, chosen_questions
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.roles_result import CHARACTER, HeadRoles, LabelSummary, Roles
from tp_transformer.interpret.structure import DENOMINATOR, NUMERATOR, SIDE, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6  # questions in a figure
NARROWEST = 36
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
    shown = chosen_questions(roles.questions, SHOWN)
    lines = [
        (number, start)
        for number in shown
        for start in range(0, len(symbols(roles.questions[number])), PER_LINE)
    ]
    across = max(NARROWEST, *(len(symbols(roles.questions[number])) for number in shown))
    across = min(across, PER_LINE)
    named = [(i, name) for i, name in enumerate(head.names) if name is not None]
    n_legend = -(-len(named) // 2)
    down = 2.9 * len(lines) + 1.3 * n_legend
    with figures.figure(7.0, 7.0 / across * down + 0.8) as (drawn, axes):
        axes.set_axis_off()
        axes.set_xlim(-0.2, across + 0.2)
        axes.set_ylim(down, -0.2)
        axes.set_aspect("equal")
        for row, (number, start) in enumerate(lines):
            _draw_line(axes, roles, head, number, start, 2.9 * row)
        for place, (cluster_number, name) in enumerate(named):
            column, row = divmod(place, max(n_legend, 1))
            x, y = column * across / 2, 2.9 * len(lines) + 1.3 * row
            _draw_square(axes, x, y, cluster_number, roles.n_clusters)
            text = f"{name} ({100 * name.purity:.0f}% of {name.n_positions})"
            axes.text(x + 1.4, y + 0.5, text, fontsize=6, va="center")
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        title = f"{roles.vectors} clusters of head {head.head}, encoder layer {roles.layer}"
        drawn.suptitle(title.capitalize(), fontsize=9)
        legend = (
            "Squares below: clusters with a clear name."
            if named
            else "No cluster has a clear name."
        )
        figures.caption(
            drawn,
            f"Blue: numerator, gold: denominator, by the parse. {legend} {context.caption}",
        )
        return figures.save(drawn, folder, f"roles-layer{roles.layer}-head{head.head}")


def _draw_line(
    axes: "Axes", roles: Roles, head: HeadRoles, number: int, start: int, y: float
) -> None:
    """One line of a question: its characters, below them the squares, around them the sides."""
    question = roles.questions[number]
    text = symbols(question)[start : start + PER_LINE]
    for x, character in enumerate(text):
        axes.text(x + 0.5, y + 0.5, character, ha="center", va="center", family="monospace")
        own = int(head.assigned[number][start + x])
        _draw_square(axes, x, y + 1, own, roles.n_clusters)
    expression = parse(question)
    if expression is None:
        return
    sides = labels(expression)[SIDE][start : start + PER_LINE]
    for first, last, side in _runs(sides):
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


def _draw_square(axes: "Axes", x: float, y: float, number: int, n_clusters: int) -> None:
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    share = number / max(n_clusters - 1, 1)
    colour = mpl.colormaps[COLOUR_MAP](share)
    axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, color=colour, linewidth=0))
    ink = "black" if share > 0.55 else "white"
    axes.text(x + 0.5, y + 0.5, str(number), ha="center", va="center", fontsize=5, color=ink)


def _outline(axes: "Axes", x: float, y: float, width: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y - 0.05), width, 2.1, fill=False, edgecolor=colour, linewidth=1.4)
    )


def _save_structure(roles: Roles, context: Context, folder: Path) -> list[Path]:
    """For every label, head and layer: information above moved labels, probes above controls."""
    scored = [one for one in roles.labels if one.obstacle is None]
    above = _above_controls(roles, scored)
    with figures.blank(7.0, 1.6 + 3 * max(0.8, 0.15 * roles.n_layers)) as drawn:
        grid: Any = drawn.subplots(3, len(scored), squeeze=False, sharex=True, sharey=True)
        units = ("mutual information", "accuracy", "accuracy")
        for row, values, unit in zip(grid, above, units, strict=True):
            _heat_row(drawn, row, values, unit)
        for axes, one in zip(grid[0], scored, strict=True):
            axes.set_title(one.name, fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("head", fontsize=7)
        rows = ("clusters above\ncharacters", "probe above\ncharacter", "probe above\nbest reader")
        for axes, name in zip(grid[:, 0], rows, strict=True):
            axes.set_ylabel(f"{name}\n\nlayer", fontsize=7)
        drawn.suptitle(f"Structure in the {roles.vectors} vectors of the encoder", fontsize=9)
        figures.caption(
            drawn,
            "Normalised mutual information of clusters and labels, above that of characters and "
            "labels; accuracy of a linear probe on questions held out, above that from a "
            "character and its place alone, and above the best linear reader of the text (up to "
            f"4 characters on each side). {context.caption}",
        )
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
            score.probe.accuracy - label.controls[CHARACTER].accuracy,
            score.probe.accuracy - label.best_control.accuracy,
        )
    return found


def _heat_row(drawn: "Figure", grid: Any, values: npt.NDArray[np.float64], unit: str) -> None:
    """A heat map of heads and layers for each label, and one scale for all."""
    reach = max(0.05, float(np.abs(values).max()))
    image = None
    for axes, own in zip(grid, values, strict=True):
        image = axes.imshow(own, cmap="PuOr", vmin=-reach, vmax=reach, aspect="auto")
        axes.grid(visible=False)
        axes.set_xticks(range(own.shape[1]))
        axes.set_yticks(range(own.shape[0]))
        axes.tick_params(length=0, labelsize=6)
    if image is not None:
        bar = drawn.colorbar(image, ax=list(grid), shrink=0.9, pad=0.01)
        bar.ax.tick_params(labelsize=6)
        bar.set_label(unit, fontsize=6)
