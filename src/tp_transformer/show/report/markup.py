"""HTML for the report. Text is escaped unless it is `Markup`, which only this module makes."""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tp_transformer.figures import COLUMN
from tp_transformer.show.table import Cell, NumberCell, Table

LONGEST_CELL = 160  # characters
_WIDTH = re.compile(rb'<svg[^>]*? width="(\d{1,6}(?:\.\d+)?)pt"')
_NARROW = 72 * COLUMN  # points; such figures are side by side
_VOID = {"img", "line", "rect", "polyline", "polygon", "circle"}
_NUMBER = re.compile(r"[+\-−±<>=~ ]*\d[\d,]*(\.\d+)?")  # noqa: RUF001  tables have a minus sign


class Markup(str):
    """Complete HTML or SVG, in which every text has been escaped."""

    __slots__ = ()


_BREAKS = {"\n": Markup("<br>"), "_": Markup("_<wbr>"), "__": Markup("__<wbr>")}


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report.

    Attributes:
        title: heading of the section
        summary: what the section shows, in a sentence or two
        body: tables, figures, texts and commands
        sources: the files and folders it is made from
    """

    title: str
    summary: str
    body: Sequence[Markup]
    sources: Sequence[Path]


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; names of attributes have _ for -, and a _ at the end if reserved."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{given}>" if name == "img" else f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one after another; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def paragraph(text: str, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return element("p", text, class_=class_)


def heading(text: str) -> Markup:
    """Return a heading within a section."""
    return element("h3", text)


def bullets(lines: Iterable[str]) -> Markup:
    """Return a list; nothing if it is empty."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_="findings") if items else Markup()


def command(text: str | None) -> Markup:
    """Return the command that made something, if it is known."""
    if text is None:
        return paragraph("The file does not record the command that made it.", "made")
    label = element("span", "Made by", class_="label")
    return element("p", label, " ", element("code", text), class_="made")


def folded(title: str, *body: Markup) -> Markup:
    """Return content that is shown when its title is clicked; in print it is always shown."""
    return element("details", element("summary", title), *body)


def table(shown: Table, *, whole: Sequence[int] = ()) -> Markup:
    """Return a table that can be sorted; the texts of the columns in `whole` stay on one line."""
    sides = ["text" if place < shown.n_texts else "number" for place in range(len(shown.heads))]
    sides = [f"{side} whole" if place in whole else side for place, side in enumerate(sides)]
    head = element("tr", *_heads(shown.heads, sides))
    body = [
        element("tr", *(_cell(cell, side) for cell, side in zip(row, sides, strict=True)))
        for row in shown.rows
    ]
    drawn = element(
        "table", element("caption", shown.title), element("thead", head), element("tbody", *body)
    )
    scrolled = element(
        "div", drawn, class_="scroll", role="region", aria_label=shown.title, tabindex=0
    )
    below = joined(paragraph(note, "note") for note in shown.notes if note)
    return element("div", scrolled, below, class_="table")


def _heads(heads: Sequence[str], sides: Sequence[str]) -> list[Markup]:
    return [
        element("th", element("button", text or "name", type="button"), class_=side, scope="col")
        for text, side in zip(heads, sides, strict=True)
    ]


def _cell(cell: Cell, side: str) -> Markup:
    if isinstance(cell, NumberCell):
        return element("td", *_lines(cell.text), class_=side, data_sort=repr(float(cell.value)))
    number = _NUMBER.match(cell) if side.startswith("number") else None
    key = None if number is None else re.sub(r"[^\d.\-]", "", number[0].replace("−", "-"))  # noqa: RUF001
    return element("td", *_lines(cut(cell)), class_=side, data_sort=key)


def _lines(text: str) -> list[str]:
    """Return a text with its ends of lines; a long name may continue on the next after a `_`."""
    return [_BREAKS.get(part, part) for part in re.split(r"(\n|__?)", text)]


def cut(text: str, longest: int = LONGEST_CELL) -> str:
    """Shorten a text."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def chart(drawn: Markup, name: str, caption: str) -> Markup:
    """Return a figure of the report, drawn as SVG in the colours of the page."""
    return _figure(element("div", drawn, class_="chart"), name, caption)


def picture(file: Path, name: str, caption: str, text: str) -> Markup:
    """Return a figure from an SVG file.

    It is an image, in which a browser runs no scripts and loads nothing, whatever the file has.
    """
    content = file.read_bytes()
    encoded = base64.b64encode(content).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{encoded}", alt=text)
    width = _WIDTH.search(content)
    size = None if width is not None and float(width[1]) <= _NARROW else "wide"
    return _figure(element("div", image, class_="plate"), name, caption, size)


def _figure(drawn: Markup, name: str, caption: str, size: str | None = None) -> Markup:
    save = element("button", "Save SVG", type="button", class_="save", data_name=f"{name}.svg")
    below = element("figcaption", element("span", caption), save)
    return element("figure", drawn, below, class_=size)
