"""The command line: from what was typed to a verb, and how it ends."""

import io
import os
import re
import signal
import sys
from argparse import ArgumentError
from collections.abc import Sequence

from jsonargparse import ArgumentParser, Namespace

from tp_transformer import __version__
from tp_transformer.foundation import interruptions
from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.interruptions import Terminated
from tp_transformer.foundation.ranges import check, without_range
from tp_transformer.verbs import data, explore, interpret, model, scoring
from tp_transformer.verbs.verb import Verb, complain

VERBS = {
    "demo": model.DEMO,
    "models": model.MODELS,
    "solve": model.SOLVE,
    "data": data.DATA,
    "train": model.TRAIN,
    "curve": model.CURVE,
    "evaluate": scoring.EVALUATE,
    "compare": scoring.COMPARE,
    "interpret": interpret.INTERPRET,
    "explore": explore.EXPLORE,
    "import-authors": model.IMPORT_AUTHORS,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `tpt` with the given arguments, or with those of the command line."""
    _allow_any_character()
    verb = Verb("", verbs=VERBS)
    try:
        named, dotted = _without_settings(sys.argv[1:] if arguments is None else arguments)
        options = _parse(named)
        while verb.verbs:
            verb, options = verb.verbs[options.verb], options[options.verb]
        if verb.takes_settings:
            options.settings = dotted
        elif dotted:
            raise ArgumentError(None, f"unrecognized arguments: {' '.join(dotted)}")
        for flag, argument in verb.arguments.items():
            value = options[flag.removeprefix("--").replace("-", "_")]
            check(flag, value, argument.get("type"))
        if verb.run:
            verb.run(options)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, Terminated) as error:
        raise SystemExit(_explain(error, verb)) from None


def _explain(error: BaseException, verb: Verb) -> int:
    """Say in a line why a command has ended; its exit code. A mistake of ours is raised again."""
    number = error.number if isinstance(error, Terminated) else interruptions.received()
    if isinstance(error, KeyboardInterrupt) and number is None:
        number = signal.SIGINT
    if number is not None:  # whatever a library has made of it
        more = "; the same command goes on where this one stopped" if verb.goes_on else ""
        complain(interruptions.describe(number) + more)
        return 128 + number
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has had enough. Python would complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, ArgumentError | UserError):
        complain(" ".join(str(error).split()))
    elif isinstance(error, OSError):
        complain(str(error))
    elif _is_out_of_memory(error):
        first = next(iter(str(error).splitlines()), "")
        complain(f"there is not enough memory for this: {first}".removesuffix(": "))
    else:
        raise error
    return 2


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so; torch has a class of its own for GPUs, and none for CPUs."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "DefaultCPUAllocator" in str(error)


def _allow_any_character() -> None:
    """Have characters that the terminal's encoding lacks replaced: bars are no reason to fail.

    UTF-8 lacks what Python makes of a file's name that is not UTF-8.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _without_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The plain arguments, and those that are settings: `--model.n_layers=2`, or with a space.

    Of a verb that takes settings, every option that is not its own counts as one: `settings` can
    tell who writes `--steps=3` that `--training.steps` was meant.
    """
    verb = VERBS.get(arguments[0]) if arguments else None
    takes_settings = verb is not None and verb.takes_settings
    own = {"--help", *(verb.arguments if verb is not None else ())}
    plain: list[str] = []
    dotted: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        is_own = argument.partition("=")[0] in own
        if is_own or not re.match(r"--\w" if takes_settings else r"--\w+\.", argument):
            plain.append(argument)
            continue
        dotted.append(argument)
        if "=" not in argument and rest and not rest[0].startswith("--"):
            dotted.append(rest.pop(0))
    return plain, dotted


def _parse(arguments: Sequence[str]) -> Namespace:
    try:
        return _parser().parse_args(arguments)
    except OverflowError as error:  # which the parser lets pass
        raise ArgumentError(None, f"a number is too large: {error}") from error


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="tpt",
        description="The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset.",
        version=__version__,
        exit_on_error=False,
    )
    _add_verbs(parser, VERBS)
    return parser


def _add_verbs(parser: ArgumentParser, verbs: dict[str, Verb]) -> None:
    """Give a parser its verbs, and those verbs their arguments or verbs of their own."""
    subcommands = parser.add_subcommands(dest="verb", required=True)
    for name, verb in verbs.items():
        own = ArgumentParser(description=verb.help, exit_on_error=False)
        for flag, options in verb.arguments.items():
            hint = {"type": without_range(options["type"])} if "type" in options else {}
            own.add_argument(flag, **options | hint)
        subcommands.add_subcommand(name, own, help=verb.help)
        if verb.verbs:
            _add_verbs(own, verb.verbs)
