"""Verbs about models: listed, asked, trained, brought in from elsewhere; and the demo."""

from pathlib import Path

from jsonargparse import Namespace

from tp_transformer.foundation.ranges import AnswerLength, Beams, LengthPenalty, Size
from tp_transformer.verbs.verb import DEVICE, MODEL, Verb, complain


def _demo(options: Namespace) -> None:
    from tp_transformer.study.demo import demo

    demo(options.out)


def _models(options: Namespace) -> None:
    from rich.console import Console

    from tp_transformer.show.presets import models_table

    Console().print(models_table())


def _solve(options: Namespace) -> None:
    from tp_transformer.foundation.allocator import keep_freed_memory
    from tp_transformer.foundation.distributed import choose_device
    from tp_transformer.foundation.errors import SettingsError
    from tp_transformer.model.family import load
    from tp_transformer.model.stream import questions_from, solve_each

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
            complain(asked.error)
        text = asked.as_json() if options.json else asked.as_text(several=options.n_best > 1)
        print(text, flush=True)
    if n_bad:
        raise SystemExit(2)


def _train(options: Namespace) -> None:
    import json

    from tp_transformer.foundation.allocator import keep_freed_memory
    from tp_transformer.foundation.run_folder import CONFIG
    from tp_transformer.foundation.settings import run_values
    from tp_transformer.show.panel import display
    from tp_transformer.training.run import RunConfig, run_config, train

    keep_freed_memory()
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
        display=display,
    )
    if outcome.is_first:
        print(*outcome.lines(), sep="\n")
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)


def _curve(options: Namespace) -> None:
    from tp_transformer.show.curve import read_curves, save_curves

    curves = [curve for run in options.runs for curve in read_curves(run)]
    files = save_curves(curves, options.out)
    print(*(curve.line() for curve in curves), sep="\n")
    print(f"drawn: {', '.join(map(str, files))}")


def _import_authors(options: Namespace) -> None:
    from tp_transformer.interop.authors import import_checkpoint

    model = import_checkpoint(options.checkpoint, options.vocab, n_heads=options.heads)
    model.save(options.out)
    config = model.config
    print(
        f"{options.out}: {'plain ' if config.binding == 'none' else 'TP-'}Transformer with "
        f"{config.n_layers}+{config.n_layers} layers, d_model {config.d_model}, "
        f"{len(model.vocabulary)} tokens, {model.n_parameters:,} parameters"
    )


DEMO = Verb(
    "train two small models in a few minutes and compare them; needs no data and no network",
    _demo,
    {"--out": {"type": Path, "default": Path("demo"), "help": "a folder for all of it"}},
    goes_on=True,
)

MODELS = Verb("list every preset with its parameter count and the paper's", _models)

SOLVE = Verb(
    "answer questions: those given, those in a file, or standard input line by line",
    _solve,
    {
        "questions": {"type": str, "nargs": "*", "help": "the questions"},
        "--file": {"type": Path | None, "help": "a file with a question on each line"},
        "--model": MODEL,
        "--beam": {
            "type": Beams | None,
            "help": "beginnings to follow at a time; 1, or as many as --n-best, by default",
        },
        "--n-best": {"type": Beams, "default": 1, "help": "answers to each question"},
        "--length-penalty": {
            "type": LengthPenalty,
            "default": 0.0,
            "help": "divides log-probabilities by the length to this power; 0 does not",
        },
        "--max-length": {
            "type": AnswerLength | None,
            "help": "tokens of an answer; as many as the model was made for by default",
        },
        "--json": {"action": "store_true", "help": "an object per line, with scores"},
        "--device": DEVICE,
    },
)

TRAIN = Verb(
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
        "--device": DEVICE,
        "--compile": {"action": "store_true", "help": "have torch compile the model"},
        "--tensorboard": {"action": "store_true", "help": "write curves for TensorBoard, too"},
    },
    takes_settings=True,
    goes_on=True,
)

CURVE = Verb(
    "draw how the error of runs fell, validation after validation",
    _curve,
    {
        "runs": {"type": Path, "nargs": "+", "help": "the runs' folders"},
        "--out": {"type": Path, "required": True, "help": "a folder for the figure"},
    },
)

IMPORT_AUTHORS = Verb(
    "turn a checkpoint of the paper's authors into a model folder",
    _import_authors,
    {
        "checkpoint": {"type": Path, "help": "the checkpoint, as torch.save wrote it"},
        "--vocab": {"type": Path, "required": True, "help": "the vocab.pt that belongs to it"},
        "--heads": {
            "type": Size,
            "default": 8,
            "help": "attention heads, which the checkpoint does not tell",
        },
        "--out": {"type": Path, "required": True, "help": "the model folder to write"},
    },
)
