"""HTML files of commands: a page is marked, so that a command replaces only pages of its own."""

import base64
import hashlib
from pathlib import Path

from tp_transformer import __version__
from tp_transformer.errors import SettingsError, reason

_MARKED_WITHIN = 4096  # bytes from the beginning of a page


def mark(kind: str) -> str:
    """Return the element that marks a page of a kind, such as "report"."""
    return f'{_beginning(kind)} {__version__}">'


def refuse_other_file(out: Path, kind: str, *, overwrite: bool = False) -> None:
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
