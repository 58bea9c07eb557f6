"""Verbs about scores: a model's, and several beside each other."""

import sys
from pathlib import Path

from jsonargparse import Namespace

from tp_transformer.foundation.ranges import Count, PositiveInt, Seed
from tp_transformer.verbs.verb import DEVICE, MODEL, MODULES, Verb


def _evaluate(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.foundation.allocator import keep_freed_memory
    from tp_transformer.foundation.progress import progress
    from tp_transformer.scoring.evaluate import Work, evaluate
    from tp_transformer.scoring.questions import Choice
    from tp_transformer.show.table import render_results

    keep_freed_memory()
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

    from tp_transformer.scoring.results import Results
    from tp_transformer.show import document, table

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
        from tp_transformer.show.bars import save_bars

        for file in save_bars(results, options.figures):
            print(file, file=sys.stderr)


EVALUATE = Verb(
    "score a model: exact match on every module, with intervals; given again after a stop, it "
    "goes on",
    _evaluate,
    {
        "--model": MODEL,
        "--data": {"type": Path, "required": True, "help": "the store"},
        "--out": {"type": Path, "required": True, "help": "the results to write, a JSON file"},
        "--modules": MODULES,
        "--splits": {
            "nargs": "+",
            "help": "which splits; all that the store has by default",
        },
        "--train-count": {
            "type": Count,
            "default": 1000,
            "help": "training questions of each module, drawn at random",
        },
        "--seed": {"type": Seed, "default": 0, "help": "another seed, other draws"},
        "--decode": {
            "type": Count,
            "default": 0,
            "help": "check on so many questions that greedy decoding gives the same verdict",
        },
        "--diagnose": {
            "type": Count,
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
            "type": PositiveInt | None,
            "help": "less where memory is short; no verdict depends on it",
        },
        "--device": DEVICE,
    },
    goes_on=True,
)

COMPARE = Verb(
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
)
