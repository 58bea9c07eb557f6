"""The commands there are, and whether a command is one of them."""

from torch.distributed.run import parse_args as torchrun_options

from tp_transformer.cli import TPT, parse
from tp_transformer.verbs.train import Train
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


def check_arguments(arguments):
    """Parse a command, and where it is to train, make its settings; run nothing."""
    if arguments[0] == "--print_shtab":
        return  # tests/test_cli.py runs it
    verb = parse(arguments)
    if isinstance(verb, Train):
        assert verb.config is None or verb.resolved() is not None  # a run that exists has its own


def check_torchrun(arguments):
    """Its own parser goes first, and stumbles over what looks like an option of its own."""
    options = torchrun_options(arguments)
    assert (options.module, options.training_script) == (True, "tp_transformer")
    check_arguments(options.training_script_args)
