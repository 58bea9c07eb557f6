"""Role clusters of questions in a terminal."""

from collections.abc import Iterator, Sequence
from string import ascii_letters, digits

from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from tp_transformer.figures import TOKENS
from tp_transformer.interpret.core.result import Result
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.roles.analysis import RolesResult
from tp_transformer.interpret.roles.clusters import HeadClusters, Look, cluster_looks

NARROWEST_LEGEND = 36  # characters of a column of the legend
SHOWN = 3  # questions
MARKS = digits + ascii_letters


def most_structural(heads: Sequence[HeadClusters]) -> HeadClusters:
    """Return the head with the most clusters whose names say more than the character."""
    return max(heads, key=lambda head: head.n_structural)


def render_clusters(result: Result, console: Console) -> None:
    """Print the clusters of one head in some questions."""
    assert isinstance(result, RolesResult)  # noqa: S101, for the type checker
    head = most_structural(result.heads)
    title = f"{result.vectors} clusters of head {head.head}, encoder layer {result.layer}"
    console.print()
    console.print(Text(title.capitalize(), style="bold"))
    console.print(roles_figure(result.context.sample, head, console))


def roles_figure(sample: Sample, head: HeadClusters, console: Console) -> Group:
    """Return some questions with the cluster of each character below it, and the clusters' names.

    Clusters have a colour and a number, so that the figure can also be read without colours; those
    of numerators are blue, those of denominators golden.
    """
    lines = [
        line
        for number in sample.shown(SHOWN, n_characters=console.width)
        for line in _question_lines(sample, head, number, console)
    ]
    return Group(*lines, _legend(head, console.width), Text(TOKENS, style="dim"))


def _question_lines(
    sample: Sample, head: HeadClusters, number: int, console: Console
) -> Iterator[Text]:
    """Yield a question and the clusters of its characters, broken at the width of the terminal."""
    characters = token_characters(sample.questions[number])
    clusters, looks = head.assigned[number], cluster_looks(head.names)
    for start in range(0, len(characters), console.width):
        part = slice(start, start + console.width)
        text, below = Text(), Text()
        for character, cluster in zip(characters[part], clusters[part], strict=True):
            text.append(character, style=_style(looks[cluster]))
            below.append(_mark(int(cluster)), style="dim")
        yield from (text, below)


def _legend(head: HeadClusters, width: int) -> RichTable:
    """Return the named clusters, in as many columns as fit."""
    named = [(number, str(name)) for number, name in enumerate(head.names) if name is not None]
    n_columns = max(1, width // max([NARROWEST_LEGEND, *(len(name) + 5 for _, name in named)]))
    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    looks = cluster_looks(head.names)
    cells = [
        Text.assemble((f" {_mark(number)} ", _style(looks[number])), f" {name}")
        for number, name in named
    ]
    for start in range(0, len(cells), n_columns):
        table.add_row(*cells[start : start + n_columns])
    return table


def _mark(cluster: int) -> str:
    """Return the number of a cluster in one character: digits, then letters, then all again."""
    return MARKS[cluster % len(MARKS)]


def _style(look: Look) -> str:
    background, foreground = look
    return f"{foreground} on {background}"
