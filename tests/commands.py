"""The commands there are."""

from tp_transformer.cli import TPT
from tp_transformer.verbs.verb import Group


def verbs(group=TPT, words=()):
    """Every verb with the words that name it, such as `("data", "show")`."""
    found = []
    for name, verb in group.verbs.items():
        path = (*words, name)
        found += verbs(verb, path) if isinstance(verb, Group) else [(path, verb)]
    return found


def groups(group=TPT, words=()):
    """The words before verbs: none, `("data",)`, …"""
    found = [words]
    for name, verb in group.verbs.items():
        found += groups(verb, (*words, name)) if isinstance(verb, Group) else []
    return found
