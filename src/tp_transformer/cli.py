"""The command line: parsing of arguments, running of verbs, and exit codes."""

import io
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
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
from tp_transformer.verbs import data, model, results, study, train  # noqa: F401, register verbs
from tp_transformer.verbs.verb import GROUPS, VERBS, Verb, complain, register_verb


@register_verb("completion")
class PrintCompletion(Verb):
    """Print the script that completes verbs and options in a shell.

    Attributes:
        shell: the shell that the script is for
    """

    shell: Literal["bash", "zsh", "fish"]

    def __call__(self) -> None:
        """Run the command."""
        print(application(verbs_of("interpret")).generate_completion(shell=self.shell))


class Application(App):
    """A parser that converts the values of options as settings are converted (`ranges.py`)."""

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """Return the arguments and options of a verb, with those from registries."""
        verb = self.default_command
        if isinstance(verb, type) and issubclass(verb, Verb):  # not the function that prints help
            self.default_command = verb.complete()
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
    app = verb_app = application(verbs_of(*arguments[:1]))
    words = list(arguments)
    while words and words[0] in verb_app and not words[0].startswith("-"):
        verb_app = verb_app[words.pop(0)]
    is_group = verb_app.default_command is None
    if is_group and words and not words[0].startswith("-"):
        known = [name for name in verb_app if not name.startswith("-")]
        raise UserError(
            f"there is no verb {words[0]!r}{nearest(words[0], known)}; "
            f"the verbs are {', '.join(known)}"
        )
    options = [] if is_group else verb_app.assemble_argument_collection()
    names = [name for option in options for name in option.names]
    _require_options(words, [*names, *verb_app.help_flags, *verb_app.version_flags])
    try:
        command, bound, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _usage_error(error) from error
    verb = command(*bound.args, **bound.kwargs)
    if not isinstance(verb, Verb):
        raise SystemExit(0)  # help or the version
    return verb


def verbs_of(word: str = "") -> dict[str, type[Verb]]:
    """Return the verbs by name; those of `tpt interpret`, which import more, if asked for."""
    if word != "interpret":
        return dict(VERBS)
    from tp_transformer.verbs.interpret import analysis_verbs

    return {**VERBS, **analysis_verbs()}


def application(verbs: Mapping[str, type[Verb]]) -> App:
    """Return the parser of verbs."""
    app = Application(
        name="tpt",
        help="The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset.",
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(
            negative=(),
            consume_multiple=(1, None),
            allow_repeating=True,
            show_default=_default_text,
        ),
    )
    for group, text in GROUPS.items():
        app.command(Application(name=group, help=text, version_flags=[]))
    for name, verb in verbs.items():
        group, _, word = name.rpartition(" ")
        summary = (verb.__doc__ or "").partition("\n")[0]
        (app[group] if group else app).command(verb, name=word, help=summary, version_flags=[])
    return app


def _require_options(arguments: Sequence[str], known: Sequence[str]) -> None:
    """Raise for an option that does not exist; suggest the nearest one that does."""
    names = {name.replace("_", "-") for name in known}
    for argument in takewhile(lambda argument: argument != "--", arguments):
        option = argument.partition("=")[0]
        if option.startswith("--") and option.replace("_", "-") not in names:
            raise UserError(f"there is no option {option}{_meant(option, known)}")


def _meant(option: str, known: Sequence[str]) -> str:
    """Suggest the intended option; often only the section of a setting is missing."""
    by_part: dict[str, str] = {}  # options by their names, the fields of settings, and words
    for pattern in ("^--", r"^--|.*\.", r"^--|[-._]"):
        for flag in known:
            for part in filter(None, re.split(pattern, flag)):
                by_part.setdefault(part.replace("-", "_"), flag)
    name = option.removeprefix("--").replace("-", "_")
    candidates = (name, name.rpartition(".")[2], closest(name, by_part))
    part = next((part for part in candidates if part in by_part), None)
    return "" if part is None else f" (did you mean {by_part[part]}?)"


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
