"""Errors that a user can cause: one clear line each, saying what is wrong and what to do.

The command line prints the line and exits with code 2; from Python they are ordinary exceptions.
Anything else that is raised is a mistake of ours.
"""


class UserError(Exception):
    """What a user asked for cannot be done; the message says why and what would work."""


class SettingsError(UserError):
    """A configuration that is unknown, misspelt or contradicts itself."""


class TextError(UserError):
    """A text that a model cannot read: empty, too long, or with characters it does not know."""


class CorpusError(UserError):
    """A source of questions that is damaged or not what it should be; the message says where."""


class StoreError(UserError):
    """A store of questions that is missing, damaged or not ours, or one that cannot be written."""


class FolderError(UserError):
    """A model folder that is missing, damaged or not ours, or one that cannot be written."""


class CheckpointError(UserError):
    """A file of someone else's that is damaged, unsafe or not what it is said to be."""


class TraceError(UserError):
    """A trace of a name that the model does not have, or an edit that does not fit."""


class ResultsError(UserError):
    """Results of an evaluation that are missing, damaged or not ours."""
