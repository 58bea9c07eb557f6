"""What a section of the report consists of: texts, tables and figures as HTML."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer import figures
from tp_transformer.errors import UserError
from tp_transformer.html import Markup, element, joined, paragraph
from tp_transformer.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = re.compile(rb'<svg[^>]*? width="(\d{1,6}(?:\.\d+)?)pt"')
_NARROW = 72 * figures.COLUMN  # points; such figures are side by side


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
    sources: Sequence[Path] = ()


def heading(text: str) -> Markup:
    """Return a heading within a section."""
    return element("h3", text)


def bullets(lines: Iterable[str]) -> Markup:
    """Return a list; nothing if it is empty."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_="findings") if items else Markup()


def command(text: object) -> Markup:
    """Return the command that made something, or None if it is unknown."""
    if text is None:
        return paragraph("The file does not record the command that made it.", "made")
    label = element("span", "Made by", class_="label")
    return element("p", label, " ", element("code", str(text)), class_="made")


def folded(title: str, *body: Markup) -> Markup:
    """Return content that is shown when its title is clicked; in print it is always shown."""
    return element("details", element("summary", title), *body)


def table(shown: Table) -> Markup:
    """Return a table that can be sorted, with its notes below it."""
    scrolled = element(
        "div", shown.html(), class_="scroll", role="region", aria_label=shown.title, tabindex=0
    )
    notes = joined(paragraph(note, "note") for note in shown.notes if note)
    return element("div", scrolled, notes, class_="table")


def charts(plot: Callable[[], "Mapping[str, Figure]"]) -> Markup:
    """Return figures by their names, in the colours of the page, with their captions."""
    try:
        plots = plot()
    except UserError as error:  # matplotlib is not installed
        return paragraph(str(error), "note")
    return pictures(*(_chart(name, drawn) for name, drawn in plots.items()))


def _chart(name: str, drawn: "Figure") -> Markup:
    caption = figures.caption_of(drawn) or drawn.get_suptitle()
    figures.remove_caption(drawn)
    drawn.suptitle("")
    svg = element("div", figures.inline_svg(drawn, caption), class_="chart")
    return _figure(svg, name, caption)


def pictures(*drawn: Markup) -> Markup:
    """Return figures, narrow ones side by side."""
    return element("div", *drawn, class_="figures")


def picture(file: Path, name: str, caption: str, text: str) -> Markup:
    """Return a figure from an SVG file.

    It is an image, in which a browser runs no scripts and loads nothing, whatever the file has.
    """
    content = file.read_bytes()
    encoded = base64.b64encode(content).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{encoded}", alt=text)
    width = _WIDTH.search(content)
    is_wide = width is None or float(width[1]) > _NARROW
    return _figure(element("div", image, class_="plate"), name, caption, is_wide=is_wide)


def _figure(drawn: Markup, name: str, caption: str, *, is_wide: bool = True) -> Markup:
    save = element("button", "Save SVG", type="button", class_="save", data_name=f"{name}.svg")
    below = element("figcaption", element("span", caption), save)
    return element("figure", drawn, below, class_="wide" if is_wide else None)
