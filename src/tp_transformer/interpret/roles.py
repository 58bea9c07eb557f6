"""Which roles a layer's heads have learned (section 5.1 of the paper, figure 2).

The role vectors of all positions of a sample are clustered, head by head. Where the paper's reading
of the clusters was "discovered manually", here each question is parsed, and what its characters are
in the expression is compared with the clusters and with the vectors themselves, for every head of
every layer. Attention without roles is analysed in its values.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.errors import SettingsError
from tp_transformer.interpret import naming, probes
from tp_transformer.interpret.choices import PER_LINE, chosen_heads, chosen_questions
from tp_transformer.interpret.clusters import Clustering, cluster
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.outcome import Context, Values, write
from tp_transformer.interpret.positions import Positions
from tp_transformer.interpret.probes import Information, Labelled, Probed
from tp_transformer.interpret.record import (
    Sample,
    chosen_layer,
    fresh,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.interpret.structure import DENOMINATOR, LABELS, NUMERATOR, SIDE, labels
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Integers = npt.NDArray[np.int64]

ROLE, VALUE = "role", "value"
# Linear readers of the text alone, by how many characters on each side they see. On 128 questions
# of arithmetic__mixed the second tells the side in 70% of positions, the third in 81%.
CHARACTER = "its character and place alone"
READERS = {CHARACTER: 0, "and 2 characters on each side": 2, "and 4 on each side": 4}


@dataclass(frozen=True, kw_only=True)
class HeadRoles:
    """The clusters of a head: of each position of each question, and their names."""

    head: int
    assigned: tuple[Integers, ...]
    names: tuple[naming.Name | None, ...]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well one head tells one label; None where that cannot be said."""

    layer: int
    head: int
    label: str
    information: Information | None
    probe: Probed | None


@dataclass(frozen=True, kw_only=True)
class LabelSummary:
    """A label in the sample, and what can be told of it without a model."""

    name: str
    classes: dict[str, int]  # how many positions have it
    n_left_out: int  # positions whose label is too rare
    obstacle: str | None  # why it cannot be scored
    controls: dict[str, Probed]  # what linear readers of the text tell, by what they see
    characters: Information | None  # what clusters would tell that are the characters themselves

    @property
    def best_control(self) -> Probed:
        """The reader of the text that does best."""
        return max(self.controls.values(), key=lambda one: one.accuracy)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The clusters of a layer, and the structure in every head of every layer."""

    vectors: str  # role, or value where there are no roles
    layer: int
    n_layers: int
    n_heads: int
    n_clusters: int
    questions: tuple[str, ...]
    n_parsed: int  # questions with an expression
    heads: tuple[HeadRoles, ...]
    initial_structural: int  # such names where the weights are drawn anew
    labels: tuple[LabelSummary, ...]
    scores: tuple[Score, ...]

    @property
    def meaning(self) -> list[str]:
        """What was found, in a line for each label, and how many clusters have names."""
        names = [name for head in self.heads for name in head.names if name is not None]
        n_clusters = self.n_clusters * len(self.heads)
        structural = sum(name.is_structural for name in names)
        return [
            f"{len(self.questions)} questions, {self.n_parsed} of them with an expression. Of "
            f"{n_clusters} clusters of {self.vectors} vectors in encoder layer {self.layer}, "
            f"{len(names)} have a clear name, and {structural} one that says more than the "
            f"character; with initial weights, {self.initial_structural}.",
            *(self._meaning_of(label) for label in self.labels),
        ]

    def _meaning_of(self, label: LabelSummary) -> str:
        if label.obstacle is not None:
            return f"{label.name}: not scored, as {label.obstacle}."
        own = [(one, one.probe) for one in self.scores if one.label == label.name and one.probe]
        best, probe = max(own, key=lambda pair: pair[1].accuracy)
        low, high = probe.interval
        readers = ", ".join(f"{name} {one.accuracy:.0%}" for name, one in label.controls.items())
        verdict = "more than" if low > label.best_control.interval[1] else "not surely more than"
        return (
            f"{label.name}: the best of {len(own)} heads ({best.layer}.{best.head}) tells it in "
            f"{probe.accuracy:.0%} of positions (95% {low:.0%} to {high:.0%}, all heads together), "
            f"{verdict} linear readers of the text: {readers}; commonest {probe.majority:.0%}."
        )

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "meaning": self.meaning,
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
            "initial_structural_names": self.initial_structural,
            "heads": [
                {
                    "head": one.head,
                    "assigned": list(one.assigned),
                    "names": [_name_values(name) for name in one.names],
                }
                for one in self.heads
            ],
            "labels": [asdict(one) for one in self.labels],
            "scores": [asdict(one) for one in self.scores],
        }


def _name_values(name: naming.Name | None) -> Values | None:
    if name is None:
        return None
    return {
        "name": str(name),
        "is_structural": name.is_structural,
        "purity": name.purity,
        "n_positions": name.n_positions,
        "n_questions": name.n_questions,
    }


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    layer: int = -1,
    head: int | None = None,
    clusters: int = 20,
    vectors: str | None = None,
    seed: int = 0,
) -> Roles:
    """Cluster the roles of a layer's heads, or of one; score every head of every layer.

    The paper has 128 questions of arithmetic__mixed, the last encoder layer and 20 clusters. The
    vectors are the roles where there are any, otherwise the values; `vectors="value"` reads a
    TP-Transformer in its values, too, to be compared with a Transformer's.
    """
    model = transformer_of(model)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    layer, own_heads = chosen_layer(model, layer), chosen_heads(head, n_heads)
    vectors = _chosen_vectors(vectors, has_roles=model.config.binding != "none")
    names = [f"encoder.{number}.self_attention.{vectors}" for number in range(n_layers)]
    found = record(model, sample, names)
    positions = Positions.of(sample.questions)
    labelled = [Labelled.of(name, positions.labels[name], positions.question) for name in LABELS]
    scores: list[Score] = []
    heads: tuple[HeadRoles, ...] = ()
    for number, name in enumerate(names):
        flat = found.flat(name).astype(np.float64)  # (position, head, d_head)
        clusterings = [cluster(flat[:, one], clusters, seed) for one in range(n_heads)]
        scores += [
            _score(number, one, flat[:, one], clusterings[one], label, n_layers * n_heads, seed)
            for one in range(n_heads)
            for label in labelled
        ]
        if number == layer:
            heads = _named([(one, clusterings[one]) for one in own_heads], positions, clusters)
    return Roles(
        vectors=vectors,
        layer=layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=clusters,
        questions=sample.questions,
        n_parsed=sum(one is not None for one in positions.expressions),
        heads=heads,
        initial_structural=_initial_structural(
            fresh(model, seed), sample, names[layer], own_heads, positions, clusters, seed
        ),
        labels=tuple(_summary(label, positions, seed) for label in labelled),
        scores=tuple(scores),
    )


def _named(
    clusterings: list[tuple[int, Clustering]], positions: Positions, n_clusters: int
) -> tuple[HeadRoles, ...]:
    """The clusters of some heads with their names."""
    said = naming.statements(positions.characters, positions.labels)
    return tuple(
        HeadRoles(
            head=head,
            assigned=positions.split(one.assigned),
            names=naming.names(
                one.assigned, n_clusters, said, positions.question, len(clusterings)
            ),
        )
        for head, one in clusterings
    )


def _initial_structural(
    initial: Transformer,
    sample: Sample,
    name: str,
    heads: list[int],
    positions: Positions,
    n_clusters: int,
    seed: int,
) -> int:
    """How many names say more than the character where nothing was learned."""
    flat = record(initial, sample, [name]).flat(name).astype(np.float64)
    clusterings = [(one, cluster(flat[:, one], n_clusters, seed)) for one in heads]
    named = _named(clusterings, positions, n_clusters)
    return sum(one.is_structural for head in named for one in head.names if one is not None)


def _chosen_vectors(vectors: str | None, *, has_roles: bool) -> str:
    if vectors is None:
        return ROLE if has_roles else VALUE
    if vectors not in {ROLE, VALUE} or (vectors == ROLE and not has_roles):
        there = f"{ROLE} and {VALUE}" if has_roles else VALUE
        raise SettingsError(f"the model has no vectors {vectors!r} to cluster; it has {there}")
    return vectors


def _score(
    layer: int,
    head: int,
    vectors: npt.NDArray[np.float64],
    clustering: Clustering,
    label: Labelled,
    n_compared: int,
    seed: int,
) -> Score:
    information, told = None, None
    if label.obstacle is None:
        n_clusters = len(clustering.centroids)
        information = probes.information(clustering.assigned, label, n_clusters, seed)
        told = probes.probe(vectors, label, seed, n_compared=n_compared)
    return Score(layer=layer, head=head, label=label.name, information=information, probe=told)


def _summary(label: Labelled, positions: Positions, seed: int) -> LabelSummary:
    controls, characters = {}, None
    if label.obstacle is None:
        for name, reach in READERS.items():
            features = positions.character_features(reach)
            controls[name] = probes.probe(features, label, seed, n_deals=1)
        alphabet, own = np.unique(list(positions.characters), return_inverse=True)
        characters = probes.information(own, label, len(alphabet), seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelSummary(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        controls=controls,
        characters=characters,
    )


# The figures.

SHOWN = 6  # questions in a figure
NARROWEST = 36
COLOUR_MAP = "viridis"  # ordered in lightness, for colour-blind readers too
SIDE_COLOURS = {NUMERATOR: figures.COLOURS[0], DENOMINATOR: figures.COLOURS[1]}  # as in the paper


def save(roles: Roles, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the figures; returns the files."""
    files = [write(folder, "roles", roles.to_values(), context)]
    for head in roles.heads:
        files += _save_questions(roles, head, context, Path(folder))
    if any(score.probe for score in roles.scores):
        files += _save_structure(roles, context, Path(folder))
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
