"""HTML elements. Text is escaped unless it is `Markup`, which only this module makes."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Complete HTML or SVG, in which every text has been escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; names of attributes have _ for -, and a _ at the end if reserved."""
    start = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{start}>" if name == "img" else f"<{start}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """Concatenate texts and markup; texts are escaped."""
    return Markup("".join(x if isinstance(x, Markup) else escape(x) for x in children))


def paragraph(text: str, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return element("p", text, class_=class_)


def titled_paragraphs(title: str, lines: Iterable[str]) -> Markup:
    """Return a bold title and a paragraph for each line, as notebooks show them."""
    return element("div", element("p", element("b", title)), *map(paragraph, lines))
