"""Headings of the parts of a long command in a terminal."""

from rich.console import Console
from rich.rule import Rule
from rich.text import Text


def heading(console: Console, text: str) -> None:
    """Print the heading of a part."""
    console.print()
    console.print(Rule(Text(text, style="bold"), characters="━", style="dim"))
