"""Errors that a user can cause; the message is one line with the cause and a remedy.

The command line prints the message and exits with code 2. Any other exception is a bug.
"""

from collections.abc import Iterable


class UserError(Exception):
    """Base class of errors that a user can cause."""


class SettingsError(UserError):
    """A setting that is unknown, misspelt, out of range or inconsistent with another."""


class TextError(UserError):
    """A text that a model cannot read: empty, too long, or with unknown characters."""


class CorpusError(UserError):
    """A damaged or unexpected source of questions; the message says where."""


class StoreError(UserError):
    """A store that is missing, damaged, not a store, or cannot be written."""


class FolderError(UserError):
    """A model or run folder that is missing, damaged, not one, or cannot be written."""


class CheckpointError(UserError):
    """A checkpoint, of a run or of the authors, that is damaged, unsafe or does not fit."""


class TraceError(UserError):
    """An unknown trace point, or an edit that returns an unsuitable tensor."""


class ResultsError(UserError):
    """A results file that is missing, damaged or of another kind."""


def reason(error: OSError) -> str:
    """Return why the operating system refused, without the number and the file."""
    return error.strerror or str(error)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a suggestion of the nearest valid name for a message, or an empty text."""
    match = closest(name, valid)
    return f" (did you mean {match!r}?)" if match is not None else ""


def closest(name: str, valid: Iterable[str]) -> str | None:
    """Return the nearest valid name: one with swapped letters, or else the most similar one."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(valid))
    swapped = [match for match in matches if sorted(match) == sorted(name)]
    return next(iter(swapped + matches), None)
