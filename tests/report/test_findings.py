"""Findings of analyses in a terminal, and the line that names the files."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tp_transformer.interpret.core.result import ResultTable
from tp_transformer.interpret.surgery import OPERATIONS
from tp_transformer.report.terminal import render_findings, written_line

SENTENCE = "Words of a finding that are far too many for a line of a terminal. " * 3


class Found:
    """A result with the widest table of all analyses."""

    name = "surgery"

    def summary(self):
        return [SENTENCE.strip()]

    def tables(self):
        names = ("head 0", "all heads", "head 1, random positions")
        rows = tuple((name, *["100\n91-100"] * len(OPERATIONS)) for name in names)
        return [ResultTable(title="A title", columns=("", *OPERATIONS), rows=rows, note="A note.")]


@pytest.mark.parametrize("width", [80, 120])
def test_lines_end_between_words_and_every_column_is_shown(width):
    console = Console(width=width, highlight=False, file=io.StringIO())
    render_findings(Found(), console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    sentence, table = lines[: lines.index("")], lines[lines.index("") :]
    assert " ".join(" ".join(sentence).split()) == SENTENCE.strip()
    assert all(line.startswith("  ") for line in sentence[1:])
    words = " ".join(table).split()
    assert words.count("91-100") == 3 * len(OPERATIONS)
    assert {word for name in OPERATIONS for word in name.split()} < set(words)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["roles.json"], "out/roles.json"),
        (["a.json", "a.svg", "a.pdf"], "out/a.{json,svg,pdf}"),
    ],
)
def test_all_files_are_named_in_a_line(names, line):
    assert written_line([Path("out") / name for name in names]) == f"written: {line}"
