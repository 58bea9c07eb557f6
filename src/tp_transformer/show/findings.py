"""Results of analyses in a terminal: findings in sentences, numbers in tables."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tp_transformer.interpret.core.result import Result
from tp_transformer.interpret.roles.result import RolesResult
from tp_transformer.show.roles import most_structural, roles_figure
from tp_transformer.table import Table


def render_findings(found: Result, console: Console) -> None:
    """Print the findings, wrapped at words to the width of the terminal, and the tables.

    Of roles, also the clusters of one head in some questions.
    """
    for line in found.summary():
        _print_wrapped(line, console)
    if isinstance(found, RolesResult):
        head = most_structural(found.heads)
        console.print()
        title = f"{found.vectors} clusters of head {head.head}, encoder layer {found.layer}"
        console.print(Text(title.capitalize(), style="bold"))
        console.print(roles_figure(found.context.sample, head, console))
    for table in found.tables():
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(Table(heads=table.columns, rows=table.rows).terminal())
        _print_wrapped(table.note, console, style="dim")


def _print_wrapped(text: str, console: Console, style: str = "") -> None:
    """Print a text in lines that end between words, all but the first indented."""
    lines = textwrap.fill(text, console.width, subsequent_indent="  ", break_long_words=False)
    console.print(Text(lines, style=style), soft_wrap=True)


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
        str(files[0].parent / f"{_one_name(own)}.{_one_of(suffixes)}")
        for suffixes, own in names.items()
    )
    return f"written: {listed}"


def _one_name(names: Sequence[str]) -> str:
    """A name, or a pattern that several names match."""
    if len(names) == 1:
        return names[0]
    return os.path.commonprefix(list(names)) + "*"  # noqa: RUF071  of names, not of paths


def _one_of(suffixes: Sequence[str]) -> str:
    return suffixes[0] if len(suffixes) == 1 else f"{{{','.join(suffixes)}}}"
