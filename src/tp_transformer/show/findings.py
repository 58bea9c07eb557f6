"""Results of analyses in a terminal: findings in sentences, clusters of roles, tables."""

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_letters, digits

from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from tp_transformer.figures import TOKENS
from tp_transformer.interpret.core.result import Result
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.roles.result import HeadClusters, Look, RolesResult, cluster_looks
from tp_transformer.table import Table

NARROWEST_LEGEND = 36  # characters of a column of the legend
SHOWN = 3  # questions
MARKS = digits + ascii_letters


def render_findings(result: Result, console: Console) -> None:
    """Print the findings, wrapped at words to the width of the terminal, and the tables.

    Of roles, also the clusters of one head in some questions.
    """
    for line in result.summary():
        _print_wrapped(line, console)
    if isinstance(result, RolesResult):
        head = most_structural(result.heads)
        console.print()
        title = f"{result.vectors} clusters of head {head.head}, encoder layer {result.layer}"
        console.print(Text(title.capitalize(), style="bold"))
        console.print(roles_figure(result.context.sample, head, console))
    for table in result.tables():
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(Table(heads=table.columns, rows=table.rows).terminal())
        _print_wrapped(table.note, console, style="dim")


def _print_wrapped(text: str, console: Console, style: str = "") -> None:
    """Print a text in lines that end between words, all but the first indented."""
    lines = textwrap.fill(text, console.width, subsequent_indent="  ", break_long_words=False)
    console.print(Text(lines, style=style), soft_wrap=True)


def most_structural(heads: Sequence[HeadClusters]) -> HeadClusters:
    """Return the head with the most clusters whose names say more than the character."""
    return max(heads, key=lambda head: head.n_structural)


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


def heading(console: Console, text: str) -> None:
    """Print the heading of a part."""
    console.print()
    console.print(Rule(Text(text, style="bold"), characters="━", style="dim"))


def written_line(files: Sequence[Path]) -> str:
    """Name all files that were written into a folder in one line."""
    kinds: dict[str, list[str]] = {}  # the suffixes of each name
    for file in files:
        kinds.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
    names: dict[tuple[str, ...], list[str]] = {}  # those that have the same suffixes
    for name, suffixes in kinds.items():
        names.setdefault(tuple(suffixes), []).append(name)
    listed = ", ".join(
        str(files[0].parent / f"{_pattern(stems)}.{_alternatives(suffixes)}")
        for suffixes, stems in names.items()
    )
    return f"written: {listed}"


def _pattern(names: Sequence[str]) -> str:
    """Return a name, or a pattern that several names match."""
    if len(names) == 1:
        return names[0]
    return os.path.commonprefix(list(names)) + "*"  # noqa: RUF071  of names, not of paths


def _alternatives(suffixes: Sequence[str]) -> str:
    return suffixes[0] if len(suffixes) == 1 else f"{{{','.join(suffixes)}}}"
