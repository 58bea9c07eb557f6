"""The commands there are, and whether a command is one of them."""

from torch.distributed.run import parse_args as torchrun_options

from tp_transformer.cli import application, parse, verbs_of
from tp_transformer.verbs.train import Train
from tp_transformer.verbs.verb import GROUPS


def verbs():
    """Every verb with the words that name it, such as `("data", "show")`."""
    return [(tuple(name.split()), verb) for name, verb in verbs_of("interpret").items()]


def groups():
    """The words before verbs: none, `("data",)`, …"""
    return [(), *((word,) for word in GROUPS)]


def options(words):
    """The arguments and options of a verb as cyclopts has them."""
    parser = application(verbs_of("interpret"))
    for word in words:
        parser = parser[word]
    found = parser.assemble_argument_collection(parse_docstring=True)
    return [option for option in found if not option.children]


def check_arguments(arguments):
    """Parse a command, and where it is to train, make its settings; run nothing."""
    verb = parse(arguments)
    if isinstance(verb, Train):
        assert verb.config is None or verb.resolved() is not None  # a run that exists has its own


def check_torchrun(arguments):
    """Its own parser goes first, and stumbles over what looks like an option of its own."""
    options = torchrun_options(arguments)
    assert (options.module, options.training_script) == (True, "tp_transformer")
    check_arguments(options.training_script_args)
