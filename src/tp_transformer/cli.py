"""The command line: one thin verb per stage, heavy imports inside the verb."""

import codecs
import io
import os
import re
import signal
import sys
import threading
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from tp_transformer import __version__
from tp_transformer.errors import UserError

if TYPE_CHECKING:
    from tp_transformer.data.store import Store


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `tpt` with the given arguments, or with those of the command line."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    _allow_any_character()
    try:
        named, dotted = _without_settings(sys.argv[1:] if arguments is None else arguments)
        options = _parser().parse_args(named)
        verb = Verb("", verbs=VERBS)
        while verb.verbs:
            verb, options = verb.verbs[options.verb], options[options.verb]
        if verb.takes_settings:
            options.settings = dotted
        elif dotted:
            raise ArgumentError(None, f"unrecognized arguments: {' '.join(dotted)}")
        if verb.run:
            verb.run(options)
        sys.stdout.flush()
    except (ArgumentError, UserError) as error:
        _complain(" ".join(str(error).split()))
        raise SystemExit(2) from None
    except BrokenPipeError:
        # Whoever read our output has had enough. Python would complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _complain(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("tpt: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _allow_any_character() -> None:
    """Have characters that the terminal's encoding lacks replaced: bars are no reason to fail."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and codecs.lookup(output.encoding).name != "utf-8":
        output.reconfigure(errors="replace")


def _terminate(number: int, _frame: object) -> None:
    """End as at Ctrl-C: what is unfinished is put away, and workers end too."""
    raise SystemExit(128 + number)


def _complain(line: str) -> None:
    """Say what is wrong; once, where torchrun has started several processes on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tpt: {line}", file=sys.stderr)


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


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="tpt",
        description="The TP-Transformer of Schlag et al. (2020) and the Mathematics Dataset.",
        version=__version__,
        exit_on_error=False,
    )
    _add_verbs(parser, VERBS)
    return parser


def _add_verbs(parser: ArgumentParser, verbs: "dict[str, Verb]") -> None:
    """Give a parser its verbs, and those verbs their arguments or verbs of their own."""
    subcommands = parser.add_subcommands(dest="verb", required=True)
    for name, verb in verbs.items():
        own = ArgumentParser(description=verb.help, exit_on_error=False)
        for flag, options in verb.arguments.items():
            own.add_argument(flag, **options)
        subcommands.add_subcommand(name, own, help=verb.help)
        if verb.verbs:
            _add_verbs(own, verb.verbs)


def _models(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.model.listing import models_table

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

    demo(options.out)


def _generate(options: Namespace) -> None:
    from tp_transformer.data.parallel import workers
    from tp_transformer.data.partial import Order
    from tp_transformer.data.produce import produce
    from tp_transformer.data.show import generated_lines
    from tp_transformer.progress import progress

    order = Order(
        modules=tuple(options.modules),
        splits=tuple(
            name
            for split in options.splits
            for name in (
                [f"train-{difficulty}" for difficulty in options.difficulties]
                if split == "train"
                else [split]
            )
        ),
        count=options.count,
        test_count=options.test_count,
        seed=options.seed,
    )
    open_pool = workers(options.executor or options.workers)
    with progress("generating") as update:
        store = produce(order, options.out, open_pool, progress=update)
    print(f"{options.out}: {_rows_of(store)}")
    for line in generated_lines(store.source):
        print(line)


def _prepare(options: Namespace) -> None:
    from tp_transformer.data.corpus import prepare
    from tp_transformer.data.show import skipped_lines
    from tp_transformer.progress import progress

    with progress("reading", in_bytes=True) as update:
        skip = options.on_error == "skip"
        store = prepare(options.source, options.out, skip_errors=skip, progress=update)
    print(f"{options.out}: {_rows_of(store)}")
    print(*skipped_lines(store.skipped), sep="\n", end="\n" if store.skipped else "")


def _show(options: Namespace) -> None:
    import json

    from rich.console import Console

    from tp_transformer.data.show import render, summarise
    from tp_transformer.data.store import open_store

    summary = summarise(open_store(options.store), options.modules, options.samples, options.seed)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        render(summary, Console(highlight=False))


def _export(options: Namespace) -> None:
    from tp_transformer.data.export import export
    from tp_transformer.data.store import open_store
    from tp_transformer.progress import progress

    store = open_store(options.store)
    with progress("writing") as update:
        n_rows = export(
            store, options.out, format=options.format, modules=options.modules, progress=update
        )
    print(f"{options.out}: {n_rows:,} rows as {options.format}")


def _train(options: Namespace) -> None:
    import json

    from tp_transformer.settings import run_values
    from tp_transformer.training.run import CONFIG, RunConfig, run_config, train

    asked = list(options.settings)
    if options.budget is not None:
        asked.append(f"--training.budget={json.dumps(options.budget)}")
    if options.modules is not None:
        asked.append(f"--data.modules={json.dumps(list(options.modules))}")
    earlier = options.run / CONFIG
    config = None
    if options.config is not None or (asked and earlier.is_file()):
        config = run_config(run_values(options.config or earlier, asked, RunConfig))
    outcome = train(
        config,
        options.data,
        options.run,
        device=options.device,
        compile=options.compile,
        tensorboard=options.tensorboard,
    )
    if outcome.is_first:
        print(*outcome.lines(), sep="\n")
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)


def _solve(options: Namespace) -> None:
    from tp_transformer.allocator import keep_freed_memory
    from tp_transformer.distributed import choose_device
    from tp_transformer.errors import SettingsError
    from tp_transformer.model.family import load
    from tp_transformer.solving import questions_from, solve_each

    if options.questions and options.file is not None:
        raise SettingsError("the questions are either arguments or in --file, not both")
    keep_freed_memory()
    model = load(options.model).to(choose_device(options.device))
    found = solve_each(
        model,
        questions_from(options.questions, options.file),
        noun="question" if options.questions else "line",
        beam=options.n_best if options.beam is None else options.beam,
        n_best=options.n_best,
        length_penalty=options.length_penalty,
        max_length=options.max_length,
    )
    n_bad = 0
    for asked in found:
        n_bad += asked.error is not None
        if asked.error is not None and not options.json:
            _complain(asked.error)
        text = asked.as_json() if options.json else asked.as_text(several=options.n_best > 1)
        print(text, flush=True)
    if n_bad:
        raise SystemExit(2)


def _evaluate(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.progress import progress
    from tp_transformer.scoring.evaluate import Work, evaluate
    from tp_transformer.scoring.questions import Choice
    from tp_transformer.scoring.table import render_results

    results = evaluate(
        options.model,
        options.data,
        options.out,
        Choice(
            modules=tuple(options.modules),
            splits=tuple(options.splits) if options.splits else None,
            train_count=options.train_count,
            seed=options.seed,
        ),
        Work(
            decode=options.decode,
            diagnose=options.diagnose,
            predictions=options.predictions,
            precision=options.precision,
            symbols_per_pass=options.symbols_per_pass,
        ),
        device=options.device,
        show=progress,
    )
    if results is not None:
        render_results(results, Console(highlight=False))
        print(f"{options.out}: the results; `tpt compare {options.out}` sets them beside others")


def _compare(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.scoring import document, table
    from tp_transformer.scoring.results import Results

    results = [Results.read(file) for file in options.results]
    if options.format == "terminal":
        table.render_comparison(results, Console(highlight=False))
    else:
        made = {
            "markdown": document.markdown,
            "csv": document.csv_text,
            "latex": document.latex,
        }
        print(made[options.format](results), end="")
    if options.figures is not None:
        from tp_transformer.scoring.bars import save_bars

        for file in save_bars(results, options.figures):
            print(file, file=sys.stderr)


def _interpret(name: str, options: Namespace) -> None:
    from tp_transformer.interpret.run import Options, interpret

    values = {field: value for field, value in options.items() if field != "out"}
    outcome = interpret(name, Options(**values), options.out)
    print(*outcome.lines, sep="\n")
    print(*outcome.files, sep="\n", file=sys.stderr)


def _rows_of(store: "Store") -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in store.items())


Arguments = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Verb:
    """A verb: what it does, and the function that does it with its arguments, or further verbs."""

    help: str
    run: Callable[[Namespace], None] | None = None
    arguments: Arguments = field(default_factory=dict)
    verbs: "dict[str, Verb]" = field(default_factory=dict)
    takes_settings: bool = False  # such as --model.n_layers=2, as `options.settings`


_MODEL = {"type": Path | None, "help": "the folder of a model or a run"}
_DEVICE = {"choices": ["auto", "cpu", "cuda", "mps"], "default": "auto"}
_STORE = {"type": Path, "help": "the store, a folder"}
_MODULES = {
    "nargs": "+",
    "default": ["*"],
    "help": "only these modules; `*` stands for any characters, as in 'arithmetic__*'",
}

DATA_VERBS = {
    "generate": Verb(
        "make questions with DeepMind's own generator, the same for the same seed",
        _generate,
        {
            "--out": {"type": Path, "required": True, "help": "the store to write, a folder"},
            "--modules": _MODULES,
            "--splits": {
                "nargs": "+",
                "choices": ["train", "interpolate", "extrapolate"],
                "default": ["train", "interpolate", "extrapolate"],
                "help": "which of the dataset's splits",
            },
            "--difficulties": {
                "nargs": "+",
                "choices": ["easy", "medium", "hard"],
                "default": ["easy", "medium", "hard"],
                "help": "which difficulties of training questions",
            },
            "--count": {
                "type": int,
                "default": 1000,
                "help": "questions of each module, split and difficulty",
            },
            "--test-count": {
                "type": int | None,
                "help": "questions of each module in the test splits, if not as many",
            },
            "--seed": {"type": int, "default": 0, "help": "another seed, other questions"},
            "--workers": {"type": int | None, "help": "processes; one per core by default"},
            "--executor": {
                "type": str | None,
                "help": "dask://HOST:PORT, a Dask cluster to work on instead",
            },
        },
    ),
    "prepare": Verb(
        "read the published dataset into a store: the v1.0 archive or folder, or the Hugging "
        "Face copy",
        _prepare,
        {
            "source": {"type": Path, "help": "the .tar.gz, or a folder"},
            "--out": {"type": Path, "required": True, "help": "the store to write, a folder"},
            "--on-error": {
                "choices": ["stop", "skip"],
                "default": "stop",
                "help": "what to do about faults: stop at the first, or leave out and report",
            },
        },
    ),
    "show": Verb(
        "show what a store holds: counts, lengths, questions",
        _show,
        {
            "store": _STORE,
            "--modules": _MODULES,
            "--samples": {"type": int, "default": 2, "help": "questions of each area"},
            "--seed": {"type": int, "default": 0, "help": "chooses the questions"},
            "--json": {"action": "store_true", "help": "for programs instead of people"},
        },
    ),
    "export": Verb(
        "write a store for other tools",
        _export,
        {
            "store": _STORE,
            "--format": {"choices": ["v1.0", "parquet", "jsonl"], "required": True},
            "--out": {
                "type": Path,
                "required": True,
                "help": "a folder, or for v1.0 also a .tar.gz",
            },
            "--modules": _MODULES,
        },
    ),
}

_ANALYSED: Arguments = {
    "--model": _MODEL,
    "--data": {"type": Path, "required": True, "help": "the store that the questions come from"},
    "--out": {"type": Path, "required": True, "help": "a folder for numbers and figures"},
    "--module": {"default": "arithmetic__mixed", "help": "the module of the questions"},
    "--split": {"choices": ["train", "interpolate", "extrapolate"], "default": "interpolate"},
    "--count": {"type": int, "default": 128, "help": "questions"},
    "--answered": {
        "type": bool | None,
        "help": "true for only such questions as the model answers, false for any; roles, "
        "attention and surgery look at answered ones by default, the others at any",
    },
    "--layer": {
        "type": int | None,
        "help": "counted from 0, or from the end: -1 is the last, and the default where one layer "
        "is looked at",
    },
    "--seed": {"type": int, "default": 0, "help": "another seed, other questions and draws"},
    "--device": _DEVICE,
}
_HEAD = {"type": int | None, "help": "one head instead of all"}
_WHERE = {"choices": ["encoder", "decoder", "cross"], "default": "encoder"}
_CLUSTERS = {"type": int, "default": 20, "help": "of each head's roles"}

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
INTERPRET_VERBS = {
    name: Verb(text, partial(_interpret, name), {**_ANALYSED, **own})
    for name, (text, own) in _OF_ANALYSES.items()
}

VERBS = {
    "demo": Verb(
        "train two small models in a few minutes and compare them; needs no data and no network",
        _demo,
        {"--out": {"type": Path, "default": Path("demo"), "help": "a folder for all of it"}},
    ),
    "models": Verb("list every preset with its parameter count and the paper's", _models),
    "solve": Verb(
        "answer questions: those given, those in a file, or standard input line by line",
        _solve,
        {
            "questions": {"type": str, "nargs": "*", "help": "the questions"},
            "--file": {"type": Path | None, "help": "a file with a question on each line"},
            "--model": _MODEL,
            "--beam": {
                "type": int | None,
                "help": "beginnings to follow at a time; 1, or as many as --n-best, by default",
            },
            "--n-best": {"type": int, "default": 1, "help": "answers to each question"},
            "--length-penalty": {
                "type": float,
                "default": 0.0,
                "help": "divides log-probabilities by the length to this power; 0 does not",
            },
            "--max-length": {"type": int, "default": 30, "help": "characters of an answer"},
            "--json": {"action": "store_true", "help": "an object per line, with scores"},
            "--device": _DEVICE,
        },
    ),
    "data": Verb("the Mathematics Dataset: read it, look at it, pass it on", verbs=DATA_VERBS),
    "train": Verb(
        "train a model, or go on with a run; any setting as --SECTION.FIELD=VALUE, such as "
        "--training.steps=1000 (RUN/config.yaml lists them all)",
        _train,
        {
            "--run": {"type": Path, "required": True, "help": "the run's folder"},
            "--config": {
                "type": str | None,
                "help": "a preset's name or a YAML file; not needed to go on with a run",
            },
            "--data": {"type": Path | None, "help": "the store; not needed to go on with a run"},
            "--budget": {
                "type": str | None,
                "help": "end after so much time, such as 90s, 45min, 2h or 1d12h",
            },
            "--modules": {
                "nargs": "+",
                "help": "train on these modules only; `*` stands for any characters",
            },
            "--device": _DEVICE,
            "--compile": {"action": "store_true", "help": "have torch compile the model"},
            "--tensorboard": {"action": "store_true", "help": "write curves for TensorBoard, too"},
        },
        takes_settings=True,
    ),
    "evaluate": Verb(
        "score a model: exact match on every module, with intervals; given again after a stop, it "
        "goes on",
        _evaluate,
        {
            "--model": _MODEL,
            "--data": {"type": Path, "required": True, "help": "the store"},
            "--out": {"type": Path, "required": True, "help": "the results to write, a JSON file"},
            "--modules": _MODULES,
            "--splits": {
                "nargs": "+",
                "choices": ["train", "interpolate", "extrapolate"],
                "help": "which splits; all that the store has by default",
            },
            "--train-count": {
                "type": int,
                "default": 1000,
                "help": "training questions of each module, drawn at random",
            },
            "--seed": {"type": int, "default": 0, "help": "another seed, other draws"},
            "--decode": {
                "type": int,
                "default": 0,
                "help": "check on so many questions that greedy decoding gives the same verdict",
            },
            "--diagnose": {
                "type": int,
                "default": 100,
                "help": "wrong answers of each module and split to decode and to diagnose",
            },
            "--predictions": {
                "type": Path | None,
                "help": "write every answer, as JSON lines; decodes and diagnoses all wrong ones",
            },
            "--precision": {
                "choices": ["float32", "bfloat16"],
                "default": "float32",
                "help": "bfloat16 is quicker where there are circuits for it; what it leaves in "
                "doubt is asked again in float32",
            },
            "--symbols-per-pass": {
                "type": int | None,
                "help": "less where memory is short; no verdict depends on it",
            },
            "--device": _DEVICE,
        },
    ),
    "compare": Verb(
        "set results side by side, and beside the paper's Table 1",
        _compare,
        {
            "results": {"type": Path, "nargs": "+", "help": "files that `tpt evaluate` wrote"},
            "--format": {
                "choices": ["terminal", "markdown", "csv", "latex"],
                "default": "terminal",
            },
            "--figures": {
                "type": Path | None,
                "help": "a folder for bars of every module, as SVG, PDF and PNG",
            },
        },
    ),
    "interpret": Verb("the analyses of the paper, on any checkpoint", verbs=INTERPRET_VERBS),
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
