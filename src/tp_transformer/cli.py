"""The command line: parsing of arguments, running of verbs, and exit codes."""

import io
import os
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import App, Argument, ArgumentCollection, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnusedCliTokensError,
)

from tp_transformer import __version__
from tp_transformer.errors import SettingsError, UserError, closest, nearest, reason
from tp_transformer.ranges import convert
from tp_transformer.registry import load_extensions
from tp_transformer.runtime import signals
from tp_transformer.runtime.signals import Terminated
from tp_transformer.verbs.verb import GROUPS, VERBS, Verb, complain

_DESCRIPTION = "The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset."
_HELP = ("--help", "-h")

# In this order, help lists their verbs.
_MODULES = [f"tp_transformer.verbs.{n}" for n in ("model", "data", "train", "results", "study")]
for _module in _MODULES:
    import_module(_module)


@VERBS.register("completion")
@dataclass(frozen=True, kw_only=True)
class PrintCompletion(Verb):
    """Print the script that completes verbs and options in a shell.

    Attributes:
        shell: the shell that the script is for
    """

    shell: Literal["bash", "zsh", "fish"]

    def __call__(self) -> None:
        """Run the command."""
        verbs = verbs_of("interpret")
        print(application(verbs, complete=verbs).generate_completion(shell=self.shell))


class Application(App):
    """A parser that converts the values of options as settings are converted (`ranges.py`)."""

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """Return the arguments and options of a verb."""
        arguments = super().assemble_argument_collection(**options)
        for argument in arguments:
            _adapt(argument)
        return arguments


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
        SystemExit: if they ask for help or the version, which is printed
        UserError: if they are not a command
    """
    words = _verb_words(arguments)
    app = verb_app = application(verbs_of(*words[:1]), complete=[" ".join(words)])
    for word in words:
        verb_app = verb_app[word]
    options = [*verb_app.help_flags, *verb_app.version_flags]
    if verb_app.default_command is not None:
        options += [name for each in verb_app.assemble_argument_collection() for name in each.names]
    _require_options(arguments, options)
    try:
        command, bound, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _usage_error(error) from error
    verb = command(*bound.args, **bound.kwargs)
    if not isinstance(verb, Verb):
        raise SystemExit(0)  # help or the version
    return verb


def verbs_of(word: str = "") -> dict[str, type[Verb]]:
    """Return the verbs by name; those of analyses, which take longer to import, if asked for."""
    verbs = {
        name: verb
        for module in _MODULES
        for name, verb in VERBS.items()
        if verb.__module__ == module
    }
    if word == "interpret":
        from tp_transformer.verbs.interpret import analysis_verbs

        verbs |= analysis_verbs()
    return {**verbs, **VERBS}


def application(verbs: Mapping[str, type[Verb]], complete: Collection[str]) -> App:
    """Return the parser of verbs; only those in `complete` have options from registries."""
    app = Application(
        name="tpt",
        help=_DESCRIPTION,
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(
            negative=(),
            consume_multiple=(1, None),
            allow_repeating=True,
            show_default=_default_text,
        ),
    )
    groups = {
        name: Application(name=name, help=text, version_flags=[]) for name, text in GROUPS.items()
    }
    for name, group in groups.items():
        app.command(group, name=name)
    for position, (name, verb) in enumerate(verbs.items()):
        word, _, second = name.partition(" ")
        (groups[word] if second else app).command(
            verb.complete() if name in complete else verb,
            name=second or word,
            help=(verb.__doc__ or "").partition("\n")[0],
            sort_key=position,
            version_flags=[],
        )
    return app


def _verb_words(arguments: Sequence[str]) -> list[str]:
    """Return the words that name a verb or a group of verbs; none if there are only options."""
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    if not words:
        return []
    _require_verb(words[0], [*(name for name in VERBS if " " not in name), *GROUPS])
    if words[0] not in GROUPS or len(words) == 1:
        return words[:1]
    names = (name.partition(" ") for name in verbs_of(words[0]))
    _require_verb(words[1], [second for first, _, second in names if first == words[0]])
    return words[:2]


def _require_verb(word: str, known: Collection[str]) -> None:
    if word not in known:
        raise UserError(
            f"there is no verb {word!r}{nearest(word, known)}; the verbs are {', '.join(known)}"
        )


def _require_options(arguments: Sequence[str], known: Sequence[str]) -> None:
    """Raise for an option that does not exist; suggest the nearest one that does."""
    names = {name.replace("_", "-") for name in known}
    for argument in takewhile(lambda argument: argument != "--", arguments):
        option = argument.partition("=")[0]
        if option.startswith("--") and option.replace("_", "-") not in names:
            raise UserError(f"there is no option {option}{_meant(option, known)}")


def _meant(option: str, known: Collection[str]) -> str:
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
    suggestion = next(filter(None, candidates), None)
    return f" (did you mean {suggestion}?)" if suggestion else ""


def _adapt(argument: Argument) -> None:
    """Change an argument that cyclopts has read from a dataclass."""
    if argument.children:
        argument.parameter = Parameter.combine(argument.parameter, Parameter(show=False))
        return
    changes: dict[str, Any] = {"converter": partial(_convert, argument)}
    if argument.parameter.help:
        changes["help"] = " ".join(argument.parameter.help.split())
    if argument.field_info.is_positional:
        changes["name"] = _name(argument)
    if argument.resolved_hint is bool and argument.field_info.default is not False:
        argument.hint = Literal["true", "false"]  # a flag could not switch it off
    argument.parameter = Parameter.combine(argument.parameter, Parameter(**changes))


def _convert(argument: Argument, _: Any, tokens: Sequence[Token]) -> Any:
    name, hint = tokens[0].keyword or _name(argument), argument.field_info.annotation
    if get_origin(hint) is Annotated and Parameter in map(type, get_args(hint)):
        hint = get_args(hint)[0]
    if argument.token_count()[1]:  # several values
        element_hint = get_args(argument.resolved_hint)[0]
        return tuple(convert(name, token.value, element_hint) for token in tokens)
    return convert(name, tokens[0].value, hint)


def _name(argument: Argument) -> str:
    """Return the name of an option, or that of a positional argument as the help has it."""
    is_positional = argument.field_info.is_positional
    return argument.name.removeprefix("--").upper() if is_positional else argument.name


def _default_text(default: Any) -> str | None:
    """Return a default for the help; None if there is none."""
    if default is None or default is False or default == ():
        return None
    words = default if isinstance(default, tuple) else [default]
    return " ".join("true" if word is True else str(word) for word in words)


def _usage_error(error: CycloptsError) -> UserError:
    """Return an error of cyclopts in the words of this package."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is not None:
            return UserError(f"{error.keyword} needs a value")
        return UserError(f"{_name(error.argument)} is required")
    if isinstance(error, CoercionError) and error.token is not None:
        try:
            convert(str(error.token.keyword), error.token.value, error.target_type)
        except SettingsError as reworded:
            return reworded
    if isinstance(error, UnusedCliTokensError):
        return UserError(f"there is no use for {' '.join(error.unused_tokens or [])!r}")
    error.verbose = False
    return UserError(str(error))


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
    if isinstance(error, UserError):
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
