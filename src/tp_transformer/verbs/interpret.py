"""`tpt interpret`: one verb for each registered analysis."""

import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jsonargparse import Namespace

from tp_transformer.interpret.analyses import ANALYSES, Analysis, AnalysisRequest
from tp_transformer.verbs.verb import Arguments, Verb, arguments_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def _interpret(name: str, given: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.foundation.progress import progress, showing
    from tp_transformer.interpret.run import interpret
    from tp_transformer.show.findings import render_findings, written_line

    request, options = _filled(AnalysisRequest, given), _filled(ANALYSES[name].options, given)
    with showing(progress):
        found, files = interpret(name, request, options, given.out, caption=given.caption)
    render_findings(found, Console(highlight=False))
    print(written_line(files), file=sys.stderr)


def _filled(kind: type[T], given: Namespace) -> T:
    """Make a dataclass from the arguments of the same names."""
    return kind(**{field.name: given[field.name] for field in fields(kind)})


def _arguments(analysis: Analysis) -> Arguments:
    arguments = arguments_of(AnalysisRequest)
    if analysis.questions == "nested":
        for flag in ("--data", "--module", "--split", "--answered"):
            arguments[flag]["help"] = "not used: this analysis asks nested fractions"
    else:
        arguments["--data"]["required"] = True
    out = {"type": Path, "required": True, "help": "the folder for numbers and figures"}
    caption = {
        "type": bool,
        "default": True,
        "help": "false for figures without a caption, which is then only in the JSON file",
    }
    return {**arguments, "--out": out, "--caption": caption, **arguments_of(analysis.options)}


_VERBS = {
    name: Verb(analysis.help, partial(_interpret, name), _arguments(analysis))
    for name, analysis in ANALYSES.items()
}

INTERPRET = Verb("the analyses of the paper, on any checkpoint", verbs=_VERBS)
