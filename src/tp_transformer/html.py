"""Small HTML tables and texts, which notebooks show for objects of the package.

Texts are escaped, and nothing is loaded from elsewhere.
"""

from collections.abc import Iterable, Sequence
from html import escape

LONGEST = 120  # characters of a cell
MOST = 20  # rows of a table


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    notes: Iterable[str] = (),
) -> str:
    """Return a titled table with notes below it.

    Long texts in cells are cut, and rows beyond the first ones only counted.
    """
    body = list(rows)
    lines = [_row("th", heads), *(_row("td", cells) for cells in body[:MOST])]
    more = [f"and {len(body) - MOST:,} more"] if len(body) > MOST else []
    below = _lines([*more, *notes])
    return f"<div><p><b>{escape(title)}</b></p><table>{''.join(lines)}</table>{below}</div>"


def paragraphs(title: str, lines: Iterable[str]) -> str:
    """Return a titled text."""
    return f"<div><p><b>{escape(title)}</b></p>{_lines(lines)}</div>"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines if line)


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(_cut(str(cell)))}</{tag}>' for cell in cells)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
