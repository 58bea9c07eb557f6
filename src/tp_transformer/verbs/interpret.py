"""`tpt interpret`: the analyses of the paper, a verb each."""

import sys
from functools import partial
from pathlib import Path

from jsonargparse import Namespace

from tp_transformer.ranges import Count, Layer, PositiveInt, Seed32
from tp_transformer.verbs.verb import DEVICE, MODEL, Arguments, Verb


def _interpret(name: str, options: Namespace) -> None:
    from tp_transformer.interpret.run import Options, interpret

    values = {field: value for field, value in options.items() if field != "out"}
    outcome = interpret(name, Options(**values), options.out)
    print(*outcome.lines, sep="\n")
    print(*outcome.files, sep="\n", file=sys.stderr)


_ANALYSED: Arguments = {
    "--model": MODEL,
    "--data": {"type": Path, "required": True, "help": "the store that the questions come from"},
    "--out": {"type": Path, "required": True, "help": "a folder for numbers and figures"},
    "--module": {"default": "arithmetic__mixed", "help": "the module of the questions"},
    "--split": {"choices": ["train", "interpolate", "extrapolate"], "default": "interpolate"},
    "--count": {"type": PositiveInt, "default": 128, "help": "questions"},
    "--answered": {
        "type": bool | None,
        "help": "true for only such questions as the model answers, false for any; roles, "
        "attention and surgery look at answered ones by default, the others at any",
    },
    "--layer": {
        "type": Layer | None,
        "help": "counted from 0, or from the end: -1 is the last, and the default where one layer "
        "is looked at",
    },
    "--seed": {"type": Seed32, "default": 0, "help": "another seed, other questions and draws"},
    "--device": DEVICE,
}
_HEAD = {"type": Count | None, "help": "one head instead of all"}
_WHERE = {"choices": ["encoder", "decoder", "cross"], "default": "encoder"}
_CLUSTERS = {"type": PositiveInt, "default": 20, "help": "of each head's roles"}

_OF_ANALYSES: dict[str, tuple[str, Arguments]] = {
    "roles": (
        "cluster role vectors, and score what of the expression's structure they tell",
        {
            "--head": _HEAD,
            "--clusters": _CLUSTERS,
            "--vectors": {
                "choices": ["role", "value"],
                "help": "what to cluster: roles by default, where there are any",
            },
        },
    ),
    "attention": (
        "draw attention maps, and rank heads by the relations that they follow",
        {
            "--head": _HEAD,
            "--where": _WHERE,
            "--relation": {"type": str | None, "help": "search for one relation only"},
            "--questions": {
                "nargs": "+",
                "help": "show the maps of these questions instead of some that are drawn",
            },
        },
    ),
    "information": (
        "reconstruct hidden states from the value vector of each head",
        {"--against": {"type": Path | None, "help": "a second model, drawn beside the first"}},
    ),
    "binding": (
        "which structures attention confuses; what becomes of answers when roles are changed",
        {
            "--head": _HEAD,
            "--at": {
                "type": str | None,
                "help": "change roles only at numbers, numerators, denominators, first arguments, "
                "second arguments or operators",
            },
            "--clusters": _CLUSTERS,
        },
    ),
    "tensor-product": (
        "how much of the tensor product of fillers and roles the Hadamard product keeps",
        {"--where": _WHERE},
    ),
}
_VERBS = {
    name: Verb(text, partial(_interpret, name), {**_ANALYSED, **own})
    for name, (text, own) in _OF_ANALYSES.items()
}

INTERPRET = Verb("the analyses of the paper, on any checkpoint", verbs=_VERBS)
