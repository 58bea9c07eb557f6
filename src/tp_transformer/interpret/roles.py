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
from tp_transformer.interpret.record import Sample, chosen_layer, record, symbols, transformer_of
from tp_transformer.interpret.structure import DENOMINATOR, LABELS, NUMERATOR, SIDE, labels
from tp_transformer.model.family import AnyModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Integers = npt.NDArray[np.int64]

ROLE, VALUE = "role", "value"
NEIGHBOURS = 2  # characters on each side that the second control sees
CHARACTER = "character and position"
WITH_NEIGHBOURS = f"the same and {NEIGHBOURS} neighbours on each side"


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
    controls: dict[str, Probed]


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
    labels: tuple[LabelSummary, ...]
    scores: tuple[Score, ...]

    @property
    def meaning(self) -> list[str]:
        """What was found, in a line for each label, and how many clusters have names."""
        n_named = sum(name is not None for head in self.heads for name in head.names)
        n_clusters = self.n_clusters * len(self.heads)
        return [
            f"{len(self.questions)} questions, {self.n_parsed} of them with an expression. Of "
            f"{n_clusters} clusters of {self.vectors} vectors in encoder layer {self.layer}, "
            f"{n_named} have a clear name.",
            *(self._meaning_of(label) for label in self.labels),
        ]

    def _meaning_of(self, label: LabelSummary) -> str:
        if label.obstacle is not None:
            return f"{label.name}: not scored, as {label.obstacle}."
        own = [(one, one.probe) for one in self.scores if one.label == label.name and one.probe]
        best, probe = max(own, key=lambda pair: pair[1].accuracy)
        low, high = probe.interval
        controls = ", ".join(
            f"{name} {control.accuracy:.0%}" for name, control in label.controls.items()
        )
        clear = max(control.interval[1] for control in label.controls.values())
        verdict = "more than" if low > clear else "not surely more than"
        return (
            f"{label.name}: the best head of {len(own)} ({best.layer}.{best.head}) tells it in "
            f"{probe.accuracy:.0%} of positions (95% {low:.0%} to {high:.0%}, for this head "
            f"alone), {verdict} the text tells: {controls}; commonest {probe.majority:.0%}."
        )

    def to_values(self) -> Values:
        """All of it as plain values."""
        return {
            "meaning": self.meaning,
            "vectors": self.vectors,
            "layer": self.layer,
            "clusters": self.n_clusters,
            "n_parsed": self.n_parsed,
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
    said = naming.statements(positions.characters, positions.labels)

    scores: list[Score] = []
    heads: list[HeadRoles] = []
    for number, name in enumerate(names):
        flat = found.flat(name).astype(np.float64)
        for one in range(n_heads):
            clustering = cluster(flat[:, one], clusters, seed)
            for label in labelled:
                scores.append(_score(number, one, flat[:, one], clustering, label, seed))
            if number == layer and one in own_heads:
                assigned = clustering.assigned
                heads.append(
                    HeadRoles(
                        head=one,
                        assigned=positions.split(assigned),
                        names=naming.names(assigned, clusters, said, positions.question),
                    )
                )
    return Roles(
        vectors=vectors,
        layer=layer,
        n_layers=n_layers,
        n_heads=n_heads,
        n_clusters=clusters,
        questions=sample.questions,
        n_parsed=sum(one is not None for one in positions.expressions),
        heads=tuple(heads),
        labels=tuple(_summary(label, positions, seed) for label in labelled),
        scores=tuple(scores),
    )


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
    seed: int,
) -> Score:
    information, told = None, None
    if label.obstacle is None:
        n_clusters = len(clustering.centroids)
        information = probes.information(clustering.assigned, label, n_clusters, seed)
        told = probes.probe(vectors, label, seed)
    return Score(layer=layer, head=head, label=label.name, information=information, probe=told)


def _summary(label: Labelled, positions: Positions, seed: int) -> LabelSummary:
    controls = {}
    if label.obstacle is None:
        for name, reach in ((CHARACTER, 0), (WITH_NEIGHBOURS, NEIGHBOURS)):
            controls[name] = probes.probe(positions.character_features(reach), label, seed)
    counts = np.bincount(label.label, minlength=len(label.classes)).tolist()
    return LabelSummary(
        name=label.name,
        classes=dict(zip(label.classes, counts, strict=True)),
        n_left_out=label.n_left_out,
        obstacle=label.obstacle,
        controls=controls,
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
        legend = "Below: clusters with a clear name." if named else "No cluster has a clear name."
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
    information, *probed = _above_baselines(roles, scored)
    reach = max(0.05, float(np.abs(probed).max()))
    with figures.blank(7.0, 1.6 + 3 * max(0.8, 0.15 * roles.n_layers)) as drawn:
        grid: Any = drawn.subplots(3, len(scored), squeeze=False, sharex=True, sharey=True)
        _heat_row(drawn, grid[0], information, "viridis", (0, max(0.05, information.max())))
        for row, values in zip(grid[1:], probed, strict=True):
            _heat_row(drawn, row, values, "PuOr", (-reach, reach))
        for axes, one in zip(grid[0], scored, strict=True):
            axes.set_title(one.name, fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("head", fontsize=7)
        rows = ("information\nin clusters", "probe above\ncharacter", "probe above\nneighbours")
        for axes, name in zip(grid[:, 0], rows, strict=True):
            axes.set_ylabel(f"{name}\n\nlayer", fontsize=7)
        drawn.suptitle(f"Structure in the {roles.vectors} vectors of the encoder", fontsize=9)
        figures.caption(
            drawn,
            "Normalised mutual information of clusters and labels above that with moved labels; "
            "accuracy of a linear probe above that from character and position alone, and from "
            f"{NEIGHBOURS} neighbours on each side, too. {context.caption}",
        )
        return figures.save(drawn, folder, "roles-structure")


def _above_baselines(
    roles: Roles, scored: list[LabelSummary]
) -> tuple[npt.NDArray[np.float64], ...]:
    """Scores above their baselines, (label, layer, head): the clusters', and the probe's twice."""
    found = np.zeros((3, len(scored), roles.n_layers, roles.n_heads))
    row = {one.name: i for i, one in enumerate(scored)}
    for score in roles.scores:
        if score.information is None or score.probe is None:
            continue
        label = row[score.label]
        found[0, label, score.layer, score.head] = (
            score.information.score - score.information.baseline
        )
        for number, control in enumerate((CHARACTER, WITH_NEIGHBOURS), start=1):
            known = scored[label].controls[control].accuracy
            found[number, label, score.layer, score.head] = score.probe.accuracy - known
    return tuple(found)


def _heat_row(
    drawn: "Figure",
    grid: Any,
    values: npt.NDArray[np.float64],
    cmap: str,
    limits: tuple[float, float],
) -> None:
    """A heat map of heads and layers for each label, and one scale for all."""
    image = None
    for axes, own in zip(grid, values, strict=True):
        image = axes.imshow(own, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto")
        axes.grid(visible=False)
        axes.set_xticks(range(own.shape[1]))
        axes.set_yticks(range(own.shape[0]))
        axes.tick_params(length=0, labelsize=6)
    if image is not None:
        drawn.colorbar(image, ax=list(grid), shrink=0.9, pad=0.01).ax.tick_params(labelsize=6)
