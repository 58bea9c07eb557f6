"""The clusters of a head: their names, and the figure of questions with them (figure 2).

Statements about a position name its character or a label of its structure. A statement becomes part
of the name of a cluster if it holds for nearly all positions of the cluster, and if this is more
than chance: the lower end of an interval for its share must exceed the share among all positions
for which the name so far holds. The interval counts questions, not positions, and is corrected for
the number of statements, clusters and heads.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tp_transformer import figures
from tp_transformer.figures import END, START
from tp_transformer.interpret.core.record import Booleans, Clustering, Floats, Integers
from tp_transformer.interpret.core.result import Context, Values
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.interpret.core.structure import (
    ARGUMENT,
    ASKED,
    DEGREE,
    DENOMINATOR,
    DEPTH,
    DIGIT_PLACE,
    ITEM,
    NUMERATOR,
    OPERATOR,
    PART,
    POINT,
    RANK,
    SIDE,
    SIGN,
    YES,
    labels,
)
from tp_transformer.interpret.roles.probes import Positions
from tp_transformer.scoring.statistics import wilson

PURITY = 0.8  # least share of the positions of a cluster for which its name holds
FEWEST_POSITIONS = 10
FEWEST_QUESTIONS = 8
LONGEST_NAME = 3  # statements
ERROR = 0.05  # probability that any name is given if there is nothing to name

_OPERATIONS = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}

_TOKENS = {START: "start token", END: "end token", " ": "space"}
# Statements about characters, besides those in quotes.
_ABOUT_CHARACTERS = {"letter", "in a number", SIGN, POINT, *_TOKENS.values()}

# Of the figure.
SHOWN = 6  # questions
DIGIT = 0.055  # inches for a digit of the smallest size, if there are two in a square
PITCH = 2.5  # squares from one line of characters to the next
SIDE_COLOURS = {NUMERATOR: figures.COLOURS[0], DENOMINATOR: figures.COLOURS[1]}  # as in the paper
# Shades of the clusters whose names have a side, and of the others.
SIDE_SHADES = {
    NUMERATOR: ("Blues", 0.35, 0.75),
    DENOMINATOR: ("YlOrBr", 0.2, 0.5),
    None: ("Greys", 0.06, 0.32),
}

Look = tuple[str, str]  # the colour of a cluster, and that of a text on it


@dataclass(frozen=True, kw_only=True)
class Name:
    """The statements that hold for nearly all positions of a cluster."""

    statements: tuple[str, ...]
    purity: float  # share of the positions of the cluster for which all statements hold
    n_positions: int  # in the cluster
    n_questions: int

    @property
    def is_structural(self) -> bool:
        """Whether a statement is about the expression, not only about characters."""
        return any(
            statement[0] != "'" and statement not in _ABOUT_CHARACTERS
            for statement in self.statements
        )

    @property
    def side(self) -> str | None:
        """The side of the fraction that the name has, if it has one."""
        return next((side for side in (NUMERATOR, DENOMINATOR) if side in self.statements), None)

    def __str__(self) -> str:
        return ", ".join(self.statements)

    def values(self) -> Values:
        values = {**vars(self), "name": str(self), "is_structural": self.is_structural}
        del values["statements"]
        return values


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

    @classmethod
    def named(
        cls, clusterings: Mapping[int, Clustering], positions: Positions, n_clusters: int
    ) -> "tuple[HeadClusters, ...]":
        """Name the clusters of several heads."""
        holds = statements(positions.characters, positions.labels)
        return tuple(
            cls(
                head=head,
                assigned=positions.split(clustering.assigned),
                centroids=clustering.centroids,
                names=names(
                    clustering.assigned, n_clusters, holds, positions.question, len(clusterings)
                ),
            )
            for head, clustering in clusterings.items()
        )


def statements(
    characters: Sequence[str], labels: Mapping[str, Sequence[str | None]]
) -> dict[str, Booleans]:
    """Return every statement with the positions for which it holds."""
    holds: dict[str, Booleans] = {}
    for at, character in enumerate(characters):
        label_of = {name: values[at] for name, values in labels.items()}
        phrases = [_phrase(name, value) for name, value in label_of.items() if value is not None]
        phrases += ["in a number"] if label_of.get(DIGIT_PLACE) else []
        for phrase in (*phrases, kind(character)):
            holds.setdefault(phrase, np.zeros(len(characters), dtype=bool))[at] = True
    return dict(sorted(holds.items()))


def kind(character: str) -> str:
    """Return what kind of token a character stands for."""
    return "letter" if character.isalpha() else _TOKENS.get(character, f"'{character}'")


def _phrase(label: str, value: str) -> str:
    if label == DIGIT_PLACE:
        return value if value in {SIGN, POINT} else f"{value} digit"
    if label == OPERATOR:
        return f"in {_OPERATIONS[value]}"
    if label == ASKED:
        return "asked for" if value == YES else "not asked for"
    if label in {DEPTH, ITEM, DEGREE}:
        return f"{label} {value}"
    return {SIDE: value, ARGUMENT: f"{value} argument", RANK: f"{value} item", PART: value}[label]


def names(
    clusters: Integers,
    n_clusters: int,
    holds: dict[str, Booleans],
    question: Integers,
    n_heads: int = 1,
) -> tuple[Name | None, ...]:
    """Return a name, or None, for each cluster of one of `n_heads` heads."""
    confidence = 1 - ERROR / (n_heads * n_clusters * max(1, len(holds)))
    return tuple(
        _name(clusters == number, holds, question, confidence) for number in range(n_clusters)
    )


def _name(
    member: Booleans, holds: dict[str, Booleans], question: Integers, confidence: float
) -> Name | None:
    n_questions = len(np.unique(question[member]))
    if member.sum() < FEWEST_POSITIONS or n_questions < FEWEST_QUESTIONS:
        return None
    chosen: list[str] = []
    true = np.ones_like(member)  # where all chosen statements hold
    while len(chosen) < LONGEST_NAME:
        margins = {
            phrase: _margin(member, true, positions, question, confidence)
            for phrase, positions in holds.items()
            if phrase not in chosen
        }
        best = max(margins, key=margins.__getitem__, default=None)
        if best is None or margins[best] <= 0:
            break
        chosen.append(best)
        true = true & holds[best]
    if not chosen:
        return None
    return Name(
        statements=tuple(_without_implied(chosen, holds)),
        purity=float(true[member].mean()),
        n_positions=int(member.sum()),
        n_questions=n_questions,
    )


def _margin(
    member: Booleans, true: Booleans, holds: Booleans, question: Integers, confidence: float
) -> float:
    """Return by how much a statement is clearly more frequent in a cluster; 0 if unclear."""
    inside = member & true
    both = inside & holds
    if both.sum() < PURITY * member.sum():
        return 0.0
    n_questions = len(np.unique(question[inside]))
    share = both.sum() / inside.sum()
    low, _ = wilson(round(share * n_questions), n_questions, confidence)
    return float(low - holds[true].mean())


def _without_implied(chosen: list[str], holds: dict[str, Booleans]) -> list[str]:
    """Leave out statements that the others imply: a ones digit is in a number."""
    kept = list(chosen)
    for phrase in chosen:
        others = [holds[other] for other in kept if other != phrase]
        if others and bool(holds[phrase][np.logical_and.reduce(others)].all()):
            kept.remove(phrase)
    return kept


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


def plot_questions(
    head: HeadClusters, context: Context, vectors: str, layer: int
) -> "figures.Figure":
    """Plot questions as rows of characters with the cluster of each position, as in figure 2."""
    from matplotlib.patches import Patch

    sample, looks = context.sample, cluster_looks(head.names)
    unit = max(2, len(str(len(head.names) - 1))) * DIGIT  # inches of a square
    across = int(figures.COLUMN / unit)  # squares in a line
    numbers = sample.shown(SHOWN, n_characters=across)
    lines = [
        (number, slice(start, start + across))
        for number in numbers
        for start in range(0, len(token_characters(sample.questions[number])), across)
    ]
    with figures.figure(figures.COLUMN, 1.0) as (drawn, axes):
        axes.set_axis_off()
        for row, (number, part) in enumerate(lines):
            expression = sample.expressions[number]
            sides = labels(sample.questions[number] if expression is None else expression).get(SIDE)
            _draw_line(
                axes,
                token_characters(sample.questions[number])[part],
                (sides or [None] * len(head.assigned[number]))[part],
                [(str(cluster), *looks[cluster]) for cluster in head.assigned[number][part]],
                PITCH * row,
            )
        axes.set_xlim(-0.1, across + 0.1)
        axes.set_ylim(PITCH * len(lines), -0.1)
        for artist in axes.get_children():
            artist.set_in_layout(False)  # measuring hundreds of characters takes seconds
        order = list(SIDE_SHADES)
        side_of = {number: name.side for number, name in enumerate(head.names) if name is not None}
        entries = sorted(
            {int(cluster) for number, part in lines for cluster in head.assigned[number][part]}
            | set(side_of),
            key=lambda cluster: (order.index(side_of.get(cluster)), cluster),
        )
        texts = [
            figures.broken(f"{cluster}: {_describe(head, cluster, sample.questions)}", 1.15)
            for cluster in entries
        ]
        patches = [Patch(color=looks[cluster][0]) for cluster in entries]
        title = f"{vectors} clusters of head {head.head}, encoder layer {layer}".capitalize()
        drawn.legend(patches, texts, loc="outside upper center", ncols=2, title=title)
        are_coloured = any(sample.expressions[number] is not None for number in numbers)
        colours = "Characters: numerators blue, denominators gold, by the parse. "
        below = figures.caption(
            drawn,
            "Squares: the cluster of each token; above, its name or, if none is clear, after ~ its "
            f"most frequent kind of token. {colours if are_coloured else ''}{figures.TOKENS} "
            f"{context.caption}",
        )
        half = -(-len(texts) // 2)  # of the entries are in the first column
        n_rows = max(
            sum(text.count("\n") + 1 for text in column) for column in (texts[:half], texts[half:])
        )
        drawn.set_figheight(PITCH * len(lines) * unit + 0.13 * n_rows + below + 0.4)
        return drawn


def _draw_line(
    axes: "figures.Axes",
    characters: str,
    sides: Sequence[str | None],
    squares: Sequence[tuple[str, str, str]],
    y: float,
) -> None:
    """Draw characters in the colours of their sides, and below them squares with numbers."""
    from matplotlib.patches import Rectangle

    middle: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
    for x, (character, side, (number, colour, ink)) in enumerate(
        zip(characters, sides, squares, strict=True)
    ):
        colour_of_side = "black" if side is None else SIDE_COLOURS[side]
        text = {**middle, "family": "monospace", "fontsize": 7.5}
        axes.text(x + 0.5, y + 0.5, character, color=colour_of_side, **text)
        axes.add_patch(Rectangle((x + 0.03, y + 1.03), 0.94, 0.94, color=colour, linewidth=0))
        axes.text(x + 0.5, y + 1.5, number, **middle, color=ink, fontsize=figures.SMALLEST)


def _describe(head: HeadClusters, number: int, questions: Sequence[str]) -> str:
    """Return the name of a cluster, or its most frequent kind of token if it has no clear name."""
    name = head.names[number]
    if name is not None:
        return f"{name} ({100 * name.purity:.0f}% of {name.n_positions})"
    kinds = Counter(
        kind(character)
        for question, assigned in zip(questions, head.assigned, strict=True)
        for character, cluster in zip(token_characters(question), assigned, strict=True)
        if cluster == number
    )
    ((most, count),) = kinds.most_common(1)
    return f"~ {most} ({100 * count / kinds.total():.0f}% of {kinds.total()})"
