"""The command line: one thin verb per stage, heavy imports inside the verb."""

import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from tp_transformer import __version__
from tp_transformer.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `tpt` with the given arguments, or with those of the command line."""
    try:
        parsed = _parser().parse_args(arguments)
        VERBS[parsed.verb].run(parsed[parsed.verb])
    except (ArgumentError, UserError) as error:
        print(f"tpt: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("tpt: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="tpt",
        description="The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset.",
        version=__version__,
        exit_on_error=False,
    )
    verbs = parser.add_subcommands(dest="verb", required=True)
    for name, verb in VERBS.items():
        own = ArgumentParser(description=verb.help, exit_on_error=False)
        for flag, options in verb.arguments.items():
            own.add_argument(flag, **options)
        verbs.add_subcommand(name, own, help=verb.help)
    return parser


def _models(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.demo import models_table

    Console().print(models_table())


def _import_authors(options: Namespace) -> None:
    from tp_transformer.interop.authors import import_checkpoint

    model = import_checkpoint(options.checkpoint, options.vocab, n_heads=options.heads)
    model.save(options.out)
    config = model.config
    print(
        f"{options.out}: {'plain ' if config.binding == 'none' else 'TP-'}Transformer with "
        f"{config.n_layers}+{config.n_layers} layers, d_model {config.d_model}, "
        f"{len(model.vocabulary)} symbols, {model.n_parameters:,} parameters"
    )


def _demo(options: Namespace) -> None:
    from tp_transformer.demo import demo

    demo()


@dataclass(frozen=True)
class Verb:
    """A verb: what it does, what it takes, and the function that does it."""

    help: str
    run: Callable[[Namespace], None]
    arguments: dict[str, dict[str, Any]]


VERBS = {
    "demo": Verb("show what the project does; needs no data and no network", _demo, {}),
    "models": Verb("list every preset with its parameter count and the paper's", _models, {}),
    "import-authors": Verb(
        "turn a checkpoint of the paper's authors into a model folder",
        _import_authors,
        {
            "checkpoint": {"type": Path, "help": "the checkpoint, as torch.save wrote it"},
            "--vocab": {"type": Path, "required": True, "help": "the vocab.pt that belongs to it"},
            "--heads": {
                "type": int,
                "default": 8,
                "help": "attention heads, which the checkpoint does not tell",
            },
            "--out": {"type": Path, "required": True, "help": "the model folder to write"},
        },
    ),
}
