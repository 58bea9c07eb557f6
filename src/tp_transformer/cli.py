"""The command line: parsing of arguments, running of verbs, and exit codes."""

import argparse
import io
import os
import re
import signal
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from tp_transformer import __version__
from tp_transformer.errors import UserError, reason
from tp_transformer.ranges import check, shown, without_range
from tp_transformer.registry import load_extensions
from tp_transformer.runtime import signals
from tp_transformer.runtime.signals import Terminated
from tp_transformer.settings import closest, expected, nearest
from tp_transformer.verbs import (
    bench,
    data,
    explore,
    interpret,
    model,
    report,
    reproduce,
    scoring,
    train,
)
from tp_transformer.verbs.verb import Arguments, Group, Verb, complain, filled, help_of, key_of

TPT = Group(
    "The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset",
    {
        "demo": model.Demo,
        "models": model.Models,
        "solve": model.Solve,
        "data": data.DATA,
        "train": train.Train,
        "retrain": train.Retrain,
        "curve": train.DrawCurve,
        "evaluate": scoring.Evaluate,
        "compare": scoring.Compare,
        "interpret": interpret.INTERPRET,
        "bench": bench.Bench,
        "reproduce": reproduce.Reproduce,
        "report": report.WriteReport,
        "explore": explore.Explore,
        "bundle": model.Bundle,
        "import-authors": model.ImportAuthors,
        "export": model.ExportModel,
    },
)
_OWN = {"--help", "--version", "--print_shtab"}  # options of `tpt` itself


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `tpt` with the given arguments, or with those of the command line."""
    _allow_any_character()
    try:
        signals.set_resumable(False)
        load_extensions()
        verb = parse(sys.argv[1:] if arguments is None else arguments)
        signals.set_resumable(verb.resumes)
        verb()
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, Terminated) as error:
        raise SystemExit(_explain(error)) from None


def parse(arguments: Sequence[str]) -> Verb:
    """Return the verb that the arguments name, without running it.

    Raises:
        SystemExit: if they ask for help, the version or a completion script, which is printed
    """
    words, verb = _find(arguments)
    own = {} if isinstance(verb, Group) else verb.arguments()
    flags = [flag for flag in own if flag.startswith("--")]
    _refuse_unknown(arguments[len(words) :], [*flags, *(["--help"] if words else _OWN)])
    parser = _parser(verb if "--print_shtab" not in arguments else None)
    if isinstance(verb, Group):  # without a verb, help is shown
        _parse(parser, arguments if len(arguments) > len(words) else [*words, "--help"], own)
        raise ArgumentError(None, f"name a verb: {', '.join(verb.verbs)}")
    options = _parse(parser, _with_negative_values(arguments, own), own)
    for word in words:
        options = options[word]
    for flag, argument in own.items():
        if "type" in argument:
            value = options[key_of(flag)]
            for item in value if isinstance(value, list) else [value]:
                check(flag, item, argument["type"])
    return filled(verb, options)


def _find(arguments: Sequence[str]) -> tuple[list[str], "type[Verb] | Group"]:
    """Return the words that name a verb, and the verb."""
    words: list[str] = []
    verb: type[Verb] | Group = TPT
    for word in arguments:
        if not isinstance(verb, Group) or word.startswith("-"):
            break
        if word not in verb.verbs:
            known = ", ".join(verb.verbs)
            suggestion = nearest(word, verb.verbs)
            raise ArgumentError(
                None, f"there is no verb {word!r}{suggestion}; the verbs are {known}"
            )
        words.append(word)
        verb = verb.verbs[word]
    return words, verb


def _refuse_unknown(arguments: Sequence[str], known: Sequence[str]) -> None:
    """Raise for an option that does not exist; suggest the nearest one that does."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if option == "--":
            return
        if option.startswith("--") and option not in known:
            raise ArgumentError(None, f"there is no option {option}{_meant(option, known)}")


def _with_negative_values(arguments: Sequence[str], known: Arguments) -> list[str]:
    """Join an option and a value such as -2h, which argparse would parse as another option."""
    joined: list[str] = []
    for argument in arguments:
        flag = joined[-1] if joined and "--" not in joined else ""
        is_option = flag.startswith("--") and flag in known
        takes_value = is_option and not known[flag].keys() & {"action", "nargs"}
        if takes_value and re.match(r"-\d", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _meant(option: str, known: Iterable[str]) -> str:
    """Suggest the intended option; often only the section of a setting is missing."""
    by_field = {flag.rpartition(".")[2]: flag for flag in known if "." in flag}
    by_name = {flag.removeprefix("--"): flag for flag in known}
    name = option.removeprefix("--")
    field = name.replace("-", "_")
    candidates = (
        by_field.get(field),
        by_name.get(name.rpartition(".")[2]) if "." in name else None,
        next((flag for flag in known if flag.startswith(option)), None),
        next((flag for flag in known if field in re.split("[-._]", flag)), None),
        by_name.get(closest(name, by_name) or ""),
        by_field.get(closest(field, by_field) or ""),
    )
    found = next(filter(None, candidates), None)
    return f" (did you mean {found}?)" if found else ""


def _explain(error: BaseException) -> int:
    """Print why a command has ended, and return its exit code; re-raise unexpected exceptions."""
    number = error.number if isinstance(error, Terminated) else signals.received()
    if isinstance(error, KeyboardInterrupt) and number is None:
        number = signal.SIGINT
    if number is not None:  # even if a library has converted it to another exception
        complain(signals.describe(number))
        return 128 + number
    if isinstance(error, BrokenPipeError):
        # The reader of the output has closed it. Python would report an error when it flushes the
        # rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, ArgumentError | UserError):
        complain(" ".join(str(error).split()))
    elif isinstance(error, OSError):
        complain(reason(error) if error.filename is None else f"{error.filename}: {reason(error)}")
    elif _is_out_of_memory(error):
        first = next(iter(str(error).splitlines()), "")
        complain(f"there is not enough memory for this: {first}".removesuffix(": "))
    else:
        raise error
    return 2


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means a lack of memory; torch has a class for GPUs, but none for CPUs."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "DefaultCPUAllocator" in str(error)


def _allow_any_character() -> None:
    """Replace characters that the encoding of the terminal lacks, instead of failing.

    Even UTF-8 cannot encode file names that are not valid UTF-8.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _parse(parser: ArgumentParser, arguments: Sequence[str], known: Arguments) -> Namespace:
    try:
        return parser.parse_args(arguments)
    except OverflowError as error:  # which the parser does not catch
        raise ArgumentError(None, f"a number is too large: {error}") from error
    except ArgumentError as error:
        wrong = re.search(r'key "(\w+)"(?: element \d+)?:.* value: (.*)', str(error), re.DOTALL)
        for flag, argument in known.items():
            if wrong is not None and key_of(flag) == wrong[1]:
                hint = without_range(argument["type"])
                message = f"{flag} must be {expected(hint, wrong[2])}, not {shown(wrong[2])}"
                raise ArgumentError(None, message) from error
        lacking = re.search(r"arguments are required: (.*)", str(error))
        if lacking is not None:
            keys = {key.rpartition(".")[2] for key in lacking[1].split(", ")}
            flags = [flag for flag in known if key_of(flag) in keys]
            raise ArgumentError(None, _required(flags)) from error
        raise


def _required(flags: Iterable[str]) -> str:
    """Return a message about missing arguments: positional ones, then options."""
    names = [flag.upper() for flag in flags if not flag.startswith("-")]
    options = [flag for flag in flags if flag.startswith("-")]
    parts = [f"name the {' and the '.join(names)}"] if names else []
    if options:
        parts.append(f"{' and '.join(options)} {'is' if len(options) == 1 else 'are'} required")
    return "; ".join(parts)


def _parser(chosen: "type[Verb] | Group | None") -> ArgumentParser:
    """Return the parser of all verbs, with the arguments of the chosen one, or of all.

    The settings of `tpt train` are found by importing torch.
    """
    parser = ArgumentParser(
        prog="tpt",
        usage="tpt VERB [options]",
        description=TPT.help,
        version=__version__,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument(
        "--print_shtab",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print the script that completes commands in a shell",
    )
    _add_verbs(parser, TPT, chosen)
    return parser


def _add_verbs(parser: ArgumentParser, group: Group, chosen: "type[Verb] | Group | None") -> None:
    """Add verbs to a parser, with their arguments or verbs of their own."""
    subcommands = parser.add_subcommands(
        dest="verb", required=True, title="verbs", description=None, metavar="VERB"
    )
    for name, verb in group.verbs.items():
        own = ArgumentParser(description=f"{help_of(verb)}.", print_config=None)
        subcommands.add_subcommand(name, own, help=help_of(verb))
        own.prog = f"{parser.prog} {name}"
        if isinstance(verb, Group):
            own.usage = f"{own.prog} VERB [options]"
            _add_verbs(own, verb, chosen)
        elif chosen in (verb, None):
            _add_arguments(own, verb.arguments())


def _add_arguments(parser: ArgumentParser, arguments: Arguments) -> None:
    names = []
    groups: dict[str | None, Any] = {None: parser}
    for flag, argument in arguments.items():
        options = {**argument, "help": argument["help"].replace("%", "%%")}
        title = options.pop("group", None)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if "type" in options:
            options["type"] = without_range(options["type"])
        if not flag.startswith("-"):
            several = {"*": "[{} ...]", "+": "{} ..."}.get(options.get("nargs", ""), "{}")
            names.append(several.format(flag.upper()))
        groups[title].add_argument(flag, **options)
    parser.usage = " ".join([parser.prog, *names, "[options]"])


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: Any, *arguments: Any) -> NoReturn:
        print(parser.get_completion_script(f"shtab-{arguments[1]}"))
        raise SystemExit(0)
