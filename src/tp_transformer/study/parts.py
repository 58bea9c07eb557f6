"""What the demos and the reproduction share: questions, tables of answers, lists of files."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.data.store import Store
from tp_transformer.runtime.processes import workers
from tp_transformer.runtime.progress import progress

LONGEST_SHOWN = 40  # characters of an answer


def generated(order: Order, folder: Path) -> Store:
    """Generate questions into a folder, unless they are there, and show the progress."""
    with progress("generating") as update:
        return produce(order, folder, workers(None), progress=update)


def headed_table(*columns: str) -> Table:
    """Return an empty table without lines, whose cells wrap long texts."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def predicted(text: str, is_right: bool) -> Text:
    """Return an answer with a mark that says whether it is correct."""
    mark, colour = ("✓", "green") if is_right else ("✗", "red")
    if len(text) > LONGEST_SHOWN:  # answers of a model with little training may not end
        text = f"{text[:LONGEST_SHOWN]}…"
    return Text(f"{mark} {text}", style=colour)


def show_files(
    console: Console, folder: Path, files: Mapping[str, str], commands: Iterable[Sequence[str]]
) -> None:
    """Print the files of a folder with their purposes, and the next commands."""
    console.print(Text(f"In {folder}:"), soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, purpose in files.items():
        table.add_row(Text(name), Text(purpose, style="dim"))
    console.print(table)
    for command in commands:
        asked = shlex.join(["tpt", *command])
        console.print(Text.assemble(("Next:  ", "dim"), asked), soft_wrap=True)
