"""The result of the roles analysis: named clusters, scores of the structure in them, figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from tp_transformer import figures
from tp_transformer.interpret.core.result import Result, ResultTable, Values
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.core.structure import DENOMINATOR, NUMERATOR, SIDE, labels
from tp_transformer.interpret.core.vectors import Floats, Integers
from tp_transformer.interpret.roles import naming
from tp_transformer.interpret.roles.naming import Name
from tp_transformer.interpret.roles.probes import ClusterInformation, Probed
from tp_transformer.interpret.roles.reversal import Reversal

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
PANEL = 0.75  # inches, the width of a heat map
# Differences between scores and controls, with their units.
SCORES = (
    ("clusters above\ncharacters", "mutual\ninformation"),
    ("probe above\nuntrained", "accuracy"),
    ("probe above\nbest text probe", "accuracy"),
)

Look = tuple[str, str]  # the colour of a cluster, and that of a text on it


@dataclass(frozen=True, kw_only=True)
class HeadClusters:
    """The clusters of a head: the cluster of each position of each question, and the names."""

    head: int
    assigned: tuple[Integers, ...]
    centroids: Floats  # (cluster, d_head)
    names: tuple[Name | None, ...]

    @property
    def n_structural(self) -> int:
        """The number of names that say more than the character."""
        return sum(name.is_structural for name in self.names if name is not None)


@dataclass(frozen=True, kw_only=True)
class HeadScore:
    """How well one head predicts one label; None if the label cannot be scored."""

    layer: int
    head: int
    label: str
    information: ClusterInformation | None
    probe: Probed | None


@dataclass(frozen=True, kw_only=True)
class LabelControls:
    """A label in the sample, and how well it is predicted without the trained model."""

    name: str
    classes: dict[str, int]  # the number of positions of each class
    n_left_out: int  # positions whose class is too rare
    obstacle: str | None  # the reason why the label cannot be scored
    readers: dict[int, Probed]  # text probes, by the characters that they see on each side
    initial: tuple[Probed, ...]  # the best head of each untrained model
    characters: ClusterInformation | None  # in clusters that are the characters themselves

    @property
    def best_reach(self) -> int:
        """The number of characters on each side that the best text probe sees."""
        return max(self.readers, key=lambda reach: self.readers[reach].accuracy)

    @property
    def best_reader(self) -> Probed:
        """The best text probe."""
        return self.readers[self.best_reach]

    @property
    def best_initial(self) -> Probed:
        """The best head of all untrained models."""
        return max(self.initial, key=lambda probed: probed.accuracy)


@dataclass(frozen=True, kw_only=True)
class RolesResult(Result):
    """The clusters of a layer, and the structure in every head of every layer."""

    vectors: str  # role, or value
    layer: int
    n_layers: int
    n_heads: int
    n_clusters: int
    n_parsed: int  # questions with an expression
    heads: tuple[HeadClusters, ...]
    initial_structural: tuple[int, ...]  # structural names in each untrained model
    labels: tuple[LabelControls, ...]
    scores: tuple[HeadScore, ...]
    reversal: Reversal

    name = "roles"

    def summary(self) -> list[str]:
        """Return a line on names, a line for each label, and a line on the reversal.

        Labels that cannot be scored for the same reason share a line.
        """
        names = [name for head in self.heads for name in head.names if name is not None]
        n_structural = sum(head.n_structural for head in self.heads)
        untrained = ", ".join(map(str, self.initial_structural))
        obstacles: dict[str, list[str]] = {}
        for label in self.labels:
            if label.obstacle is not None:
                obstacles.setdefault(label.obstacle, []).append(label.name)
        return [
            f"{len(self.context.sample)} questions, {self.n_parsed} of them with an expression. Of "
            f"{self.n_clusters * len(self.heads)} clusters of {self.vectors} vectors in encoder "
            f"layer {self.layer}, {len(names)} have a clear name, and {n_structural} a name that "
            f"says more than the character ({untrained} in untrained models).",
            *(self._label_summary(label) for label in self.scored),
            *(
                f"{', '.join(names)}: not scored, because {obstacle}."
                for obstacle, names in obstacles.items()
            ),
            self.reversal.summary(),
        ]

    @property
    def scored(self) -> list[LabelControls]:
        """The labels that can be scored."""
        return [label for label in self.labels if label.obstacle is None]

    def _label_summary(self, label: LabelControls) -> str:
        low, _ = self._best(label)[1].interval
        untrained = _more(low, max(control.interval[1] for control in label.initial))
        return (
            f"{label.name}: the best of {self.n_layers * self.n_heads} heads scores {untrained} "
            "the best of as many heads of untrained models, and "
            f"{_more(low, label.best_reader.interval[1])} the best text probe."
        )

    def _best(self, label: LabelControls) -> tuple[HeadScore, Probed]:
        probed = [
            (score, score.probe)
            for score in self.scores
            if score.label == label.name and score.probe is not None
        ]
        return max(probed, key=lambda pair: pair[1].accuracy)

    def tables(self) -> list[ResultTable]:
        """Return the accuracies of probes, and those of the test of the reversal."""
        rows = tuple(self._label_row(label) for label in self.scored)
        probed = ResultTable(
            title="Accuracy of linear probes on held-out questions",
            columns=("label", "head", "accuracy", "95%", "untrained", "text", "most frequent"),
            rows=rows,
            note="95%: an interval for all heads together. untrained: the best head of each "
            "untrained model. text: the best text probe, and the characters that it sees on each "
            "side. most frequent: the share of the most frequent label.",
        )
        return [*([probed] if rows else []), *self.reversal.tables()]

    def _label_row(self, label: LabelControls) -> tuple[str, ...]:
        best, probe = self._best(label)
        low, high = probe.interval
        return (
            label.name,
            f"{best.layer}.{best.head}",
            f"{probe.accuracy:.0%}",
            f"{100 * low:.0f} to {100 * high:.0f}",
            ", ".join(f"{control.accuracy:.0%}" for control in label.initial),
            f"{label.best_reader.accuracy:.0%} ({label.best_reach})",
            f"{probe.majority:.0%}",
        )

    def values(self) -> Values:
        """Return the numbers."""
        return {
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
            "initial_structural_names": self.initial_structural,
            "heads": self.heads,
            "labels": self.labels,
            "scores": self.scores,
            "reversal": self.reversal,
        }

    def plot(self) -> "dict[str, figures.Figure]":
        """Plot the questions for each head (figure 2), and all scores."""
        plots = {
            f"roles-layer{self.layer}-head{head.head}": _plot_questions(self, head)
            for head in self.heads
        }
        if any(score.probe for score in self.scores):
            plots["roles-structure"] = _plot_structure(self)
        return plots


def _more(low: float, high: float) -> str:
    return "more than" if low > high else "not clearly more than"


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
    from matplotlib.patches import Rectangle

    for x, character in enumerate(token_characters(sample.questions[number])[part]):
        look: dict[str, Any] = {"family": "monospace", "fontsize": 7.5}
        axes.text(x + 0.5, y + 0.5, character, ha="center", va="center", **look)
    looks = cluster_looks(head.names)
    for x, cluster in enumerate(head.assigned[number][part]):
        _draw_square(axes, x, y + 1, int(cluster), looks[cluster])
    expression = sample.expressions[number]
    if expression is not None:
        for first, last, side in _runs(labels(expression)[SIDE][part]):
            look = {"fill": False, "edgecolor": SIDE_COLOURS[side], "linewidth": 1.2}
            axes.add_patch(Rectangle((first, y - 0.05), last - first, 2.1, **look))


def _runs(values: list[str | None]) -> list[tuple[int, int, str]]:
    """Return the runs of equal values other than None: start, end, value."""
    runs = []
    end = 0
    for value, group in groupby(values):
        start, end = end, end + len(list(group))
        if value is not None:
            runs.append((start, end, value))
    return runs


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
    entries = sorted(drawn | set(named))
    entries.sort(key=lambda number: order.index(named.get(number)))
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
    above = np.zeros((3, len(scored), roles.n_layers, roles.n_heads))
    row = {label.name: i for i, label in enumerate(scored)}
    for score in roles.scores:
        if score.information is None or score.probe is None:
            continue
        label = scored[row[score.label]]
        characters = label.characters.score if label.characters is not None else 0.0
        above[:, row[score.label], score.layer, score.head] = (
            score.information.score - characters,
            score.probe.accuracy - label.best_initial.accuracy,
            score.probe.accuracy - label.best_reader.accuracy,
        )
    return above


def _heat_column(
    drawn: "figures.Figure", column: Any, values: Floats, title: str, unit: str
) -> None:
    """Draw a heat map of heads and layers for each label, with a common scale."""
    reach = max(0.05, float(np.abs(values).max()))
    for axes, cells in zip(column, values, strict=True):
        image = axes.imshow(cells, cmap="PuOr", vmin=-reach, vmax=reach, aspect="equal")
        axes.grid(visible=False)
        axes.set_yticks(figures.tick_indices(cells.shape[0], 6))
        axes.set_xticks(figures.tick_indices(cells.shape[1], 8))
        axes.tick_params(length=0, pad=1)
    column[0].set_title(title, fontsize=figures.SMALLEST)
    column[-1].set_xlabel("head")
    ticks = [-0.8 * reach, 0, 0.8 * reach]
    bar = drawn.colorbar(
        image, ax=list(column), location="bottom", aspect=10, pad=0.02, ticks=ticks
    )
    bar.ax.set_xticklabels([f"{tick:+.2f}" if tick else "0" for tick in ticks])
    bar.set_label(unit, fontsize=figures.SMALLEST)
