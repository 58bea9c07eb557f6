"""The base class of verbs: dataclasses whose fields are the arguments of a command.

jsonargparse parses and completes them. They are not added by its `add_class_arguments`, which would
name an option `--n_best`, take several values as `[a, b]` and a flag as `--json true`.
"""

import json
import os
import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from jsonargparse import Namespace

from tp_transformer.ranges import Device

Arguments = dict[str, dict[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """Base class for verbs; calling a verb runs it.

    The first line of the docstring describes the verb, `Attributes` describes the fields. A field
    is an option of its name, unless its metadata has another `flag`: `--name`, `name` for a
    positional argument, None for no argument. Its `choices` are those of its metadata, or of a
    Literal type. The fields of a field that is a dataclass are options too.
    """

    resumes: ClassVar[bool] = False  # whether the same command resumes after an interruption

    def __call__(self) -> None:
        """Run the command."""
        raise NotImplementedError

    @classmethod
    def arguments(cls) -> Arguments:
        """Return the arguments of `add_argument` by flag, and the `group` of each argument."""
        return dict(_arguments(cls))


@dataclass(frozen=True, kw_only=True)
class ModelVerb(Verb):
    """Base class for verbs that use a model.

    Attributes:
        model: the folder of a model or a run, or the name of a bundled model; the bundled
            TP-Transformer by default
        device: the device that the model runs on
    """

    model: Path | None = None
    device: Device = "auto"


@dataclass(frozen=True)
class Group:
    """Verbs with a common first word, such as `tpt data`."""

    help: str
    verbs: "Mapping[str, type[Verb] | Group]"


def help_of(verb: type[Verb] | Group) -> str:
    """Return the one-line description of a verb."""
    if isinstance(verb, Group):
        return verb.help
    return (verb.__doc__ or "").partition("\n")[0].rstrip(".")


def documented(kind: type) -> dict[str, str]:
    """Return the descriptions of attributes in the docstrings of a class and its bases."""
    from docstring_parser import DocstringStyle, parse

    return {
        each.arg_name: " ".join((each.description or "").split())
        for base in reversed(kind.__mro__)
        for each in parse(base.__doc__ or "", DocstringStyle.GOOGLE).params
    }


def flag_of(each: Field[Any]) -> str | None:
    """Return the option or positional argument of a field; None if it has none."""
    flag: str | None = each.metadata.get("flag", f"--{each.name.replace('_', '-')}")
    return flag


def key_of(flag: str) -> str:
    """Return the key of an argument in the namespace of the parser."""
    return flag.removeprefix("--").replace("-", "_")


def _arguments(kind: type) -> Iterator[tuple[str, dict[str, Any]]]:
    described, hints = documented(kind), get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        flag = flag_of(each)
        if is_dataclass(hint):
            yield from _arguments(cast(type, hint))
        elif flag is not None:
            yield flag, _argument(each, flag, hint, described.get(each.name, "no description"))


def _argument(each: Field[Any], flag: str, hint: Any, text: str) -> dict[str, Any]:
    is_required = each.default is MISSING
    argument: dict[str, Any] = {"help": text}
    if flag.startswith("-"):
        argument["help"] += " (required)" if is_required else _shown_default(each.default)
        if hint is bool and not each.default:
            return {**argument, "action": "store_true"}
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        argument |= {"required": is_required, "default": None if is_required else default}
    parts = (hint, *get_args(hint))
    many = next((part for part in parts if get_origin(part) in (tuple, Sequence)), None)
    if many is not None:
        hint = get_args(many)[0]
        argument["nargs"] = "+" if is_required or flag.startswith("-") else "*"
    literal = next((part for part in (hint, *parts) if get_origin(part) is Literal), None)
    choices = each.metadata.get("choices") or get_args(literal)
    if choices:
        return {**argument, "choices": list(choices)}
    metavar = "{true,false}" if bool in parts else each.name.upper()
    return {**argument, "type": hint, "metavar": metavar}


def _shown_default(default: Any) -> str:
    """Return the end of a help text with a default; empty if the text itself explains it."""
    if default is None or default is False:
        return ""
    default = "true" if default is True else default
    words = map(str, default) if isinstance(default, tuple | list) else [str(default)]
    return f" (default: {' '.join(words)})"


def add_later(
    arguments: Arguments, group: str, flag: str, key: str, text: str, choices: Sequence[str] = ()
) -> None:
    """Add an option whose value the verb parses; that of several owners has a text for each."""
    empty = {"dest": key, "default": SUPPRESS, "help": "", "group": group}
    option = arguments.setdefault(flag, empty)
    option |= {"choices": choices} if choices else {"metavar": key.rpartition(".")[2].upper()}
    option["help"] = f"{option['help']} {text}".strip()


def yaml_default(default: Any) -> str:
    """Return the end of a help text, with a default as YAML."""
    if default is MISSING:
        return ""
    text = default if isinstance(default, str) else json.dumps(default)
    return f" (default: {text.replace('null', 'none')})"


def filled(kind: type[T], given: Namespace) -> T:
    """Return a dataclass with parsed arguments of the same names."""
    hints, values = get_type_hints(kind), {}
    for each in fields(cast(Any, kind)):
        if is_dataclass(hints[each.name]):
            values[each.name] = filled(hints[each.name], given)
        elif (key := key_of(flag_of(each) or each.name)) in given:
            value = given[key]
            values[each.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def complain(line: str) -> None:
    """Print an error; once per machine if torchrun has started several processes."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tpt: {line}", file=sys.stderr)
