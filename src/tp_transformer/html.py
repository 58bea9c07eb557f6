"""HTML elements, and what the pages of commands have in common.

Text is escaped unless it is `Markup`, which only this module and `figures` make. A page is marked,
so that a command replaces only pages of its own.
"""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

from tp_transformer import __version__
from tp_transformer.errors import SettingsError, reason

_MARKED_WITHIN = 4096  # bytes from the beginning of a page


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


def page_mark(kind: str) -> str:
    """Return the element that marks a page of a kind, such as "report"."""
    return f'{_beginning(kind)} {__version__}">'


def check_replaceable(out: Path, kind: str, *, overwrite: bool = False) -> None:
    """Raise if a page of a kind cannot be written, or would replace anything but such a page."""
    if out.is_dir():
        raise SettingsError(f"{out} is a folder; name a file for the {kind}")
    for parent in out.parents:
        if parent.is_file():
            raise SettingsError(f"{parent} is a file, not a folder for the {kind}")
    if not out.exists() or overwrite:
        return
    try:
        with out.open("rb") as file:
            beginning = file.read(_MARKED_WITHIN)
    except OSError as error:
        raise SettingsError(f"cannot read {out}: {reason(error)}") from error
    if _beginning(kind).encode() not in beginning:
        raise SettingsError(
            f"{out} exists and is not a page of the {kind}; name another file, or replace it with "
            "--overwrite"
        )


def _beginning(kind: str) -> str:
    return f'<meta name="generator" content="tp-transformer {kind}'


def content_policy(script: str, style: str, *more: str) -> str:
    """Return a policy that admits one script and one style by their hashes, and `more`."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            *more,
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
