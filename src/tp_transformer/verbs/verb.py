"""The registry of verbs, and their base class: dataclasses whose fields are options.

cyclopts reads the fields and the docstring of a verb, parses its arguments and prints its help. A
verb of another package is a class with one decorator:

>>> @register_verb("greet")
... class Greet(Verb): ...
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from cyclopts import Parameter

from tp_transformer.ranges import Device
from tp_transformer.registry import Registry

VERBS: "Registry[type[Verb]]" = Registry("verb")  # that of `tpt data show` is named "data show"
GROUPS = {  # descriptions of the first words of several verbs
    "data": "Generate, prepare, show, export and verify questions and answers.",
    "interpret": "The analyses of the paper, on any checkpoint.",
}
FLATTENED = Parameter(name="*")  # annotates a dataclass whose fields are options themselves

T = TypeVar("T", bound="Verb")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """Base class for verbs; calling a verb runs it.

    The first line of the docstring describes the verb, `Attributes` describes the fields. A field
    that is not keyword-only is an argument, any other field an option of its name.
    """

    resumes: ClassVar[bool] = False  # whether the same command resumes after an interruption

    def __call__(self) -> None:
        """Run the command."""
        raise NotImplementedError

    @classmethod
    def complete(cls: type[T]) -> type[T]:
        """Return the verb with its options from registries, which may need torch."""
        return cls


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def register_verb(name: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a frozen dataclass and a verb, such as `data show`."""

    def register(verb: type[T]) -> type[T]:
        verb = dataclass(frozen=True, kw_only=True)(verb)
        VERBS.register(name)(verb)
        return verb

    return register


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


class TextOptions:
    """Options whose values the verb parses; an option of several owners has a text for each."""

    def __init__(self) -> None:
        self._parameters: dict[str, Parameter] = {}

    def add(self, name: str, text: str, default: Any, choices: Sequence[str] = ()) -> None:
        """Add the option `--section.field`; its help has the default as YAML."""
        text = with_default(text, default)
        if name in self._parameters:
            text = f"{self._parameters[name].help} {text}"
        self._parameters[name] = Parameter(
            name=f"--{name}",
            help=text,
            group=f"Settings of {name.partition('.')[0]}",
            choices=choices or None,
            metavar="VALUE",
        )

    def added_to(self, verb: type[T], field_name: str) -> type[T]:
        """Return a verb with these options in a field, of which `option_texts` has the values."""
        options = [
            (name.replace(".", "__", 1), Annotated[str | None, parameter], None)
            for name, parameter in self._parameters.items()
        ]
        options_class = make_dataclass("Texts", options, namespace={"__module__": __name__})
        options_field = field(default_factory=options_class)
        return make_dataclass(
            verb.__name__,
            [(field_name, Annotated[options_class, FLATTENED], options_field)],
            bases=(verb,),
            namespace={"__doc__": verb.__doc__, "complete": classmethod(lambda verb: verb)},
            frozen=True,
            kw_only=True,
        )


def option_texts(options: Any) -> dict[str, str]:
    """Return the texts of those `TextOptions` that have one, such as `{"training.steps": "9"}`."""
    texts = {} if options is None else vars(options)
    return {name.replace("__", ".", 1): text for name, text in texts.items() if text is not None}


def complain(line: str) -> None:
    """Print an error; once per machine if torchrun has started several processes."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tpt: {line}", file=sys.stderr)


def documented(kind: type) -> dict[str, str]:
    """Return the descriptions of attributes in the docstrings of a class and its bases."""
    from docstring_parser import DocstringStyle, parse

    return {
        attribute.arg_name: " ".join((attribute.description or "").split())
        for base in reversed(kind.__mro__)
        for attribute in parse(base.__doc__ or "", DocstringStyle.GOOGLE).params
    }


def with_default(text: str, default: Any) -> str:
    """Return a help text with a default as YAML at its end."""
    if default is MISSING:
        return text
    yaml_text = default if isinstance(default, str) else json.dumps(default)
    return f"{text} (default: {yaml_text.replace('null', 'none')})"
