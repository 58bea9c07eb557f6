"""The live demo: train two tiny models side by side and compare them on test questions.

It uses the same functions and commands as other training and scoring, and keeps all files. The same
command resumes an interrupted demo. The number of steps alone ends training, so that the scores do
not depend on the speed or the load of the machine.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.store import Store
from tp_transformer.report.comparison import Comparison
from tp_transformer.report.terminal import heading
from tp_transformer.runtime.files import refuse_other_content
from tp_transformer.runtime.progress import progress
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Choice, Work
from tp_transformer.scoring.results import Results
from tp_transformer.study.parts import generated, headed_table, predicted, show_files
from tp_transformer.study.watch import Run, train_side_by_side

MODELS = {"tp-transformer": "tp-transformer-tiny", "transformer": "transformer-tiny"}
# In a minute, models learn the first module well, the second in part, and the third hardly. The
# numbers are proportions of a batch.
MODULES = {"numbers__place_value": 7, "comparison__pair": 2, "arithmetic__add_or_sub": 1}
QUESTIONS = "questions"
SHOWN = 2  # correct and wrong answers of each module


def live_demo(
    folder: str | Path,
    console: Console | None = None,
    *,
    count: int = 6000,
    test_count: int = 500,
    steps: int = 2000,
) -> None:
    """Generate questions, train two models on them, score both, and show the results.

    Args:
        folder: for all files
        console: by default, standard output
        count: number of training questions of each module and difficulty
        test_count: number of questions of each module in each test split
        steps: number of training steps
    """
    folder = Path(folder)
    refuse_other_content(folder, "the demo", is_begun=(folder / QUESTIONS).exists())
    console = console or Console(highlight=False)
    heading(console, "1. Questions")
    order = Order(
        modules=tuple(MODULES),
        splits=("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate"),
        count=count,
        test_count=test_count,
        seed=0,
    )
    _show_questions(generated(order, folder / QUESTIONS), console)
    heading(console, "2. Two models train on them, side by side")
    runs = [_run(name, folder, steps) for name in MODELS]
    console.print(Text(f"$ tpt {shlex.join(runs[0].command())}", style="dim"), soft_wrap=True)
    train_side_by_side(runs, console)
    heading(console, "3. Both answer test questions")
    Comparison(*(_score(folder, run) for run in runs)).render(console)
    console.print(
        "Each model was trained once, with one seed. Whether the difference is due to the models "
        "or to the seed takes several: tpt train --seeds."
    )
    heading(console, "4. Some of their answers")
    console.print(_answers_table(folder, runs))
    heading(console, "5. The files")
    files = {
        QUESTIONS: "the questions: tpt data show",
        **dict.fromkeys(MODELS, "a run: model, settings, metrics"),
        **{f"{name}.json": "scores: tpt compare" for name in MODELS},
        **{f"{name}-answers.jsonl": "all answers" for name in MODELS},
    }
    model = ["--model", str(folder / next(iter(MODELS)))]
    analysis = ["--data", str(folder / QUESTIONS), "--module", next(iter(MODULES))]
    commands = (
        ["solve", "What is the hundreds digit of 31415?", *model],
        ["interpret", "attention", *model, *analysis, "--out", str(folder / "analysis")],
    )
    show_files(console, folder, files, commands)


def _show_questions(store: Store, console: Console) -> None:
    n_tests = len(store["interpolate"]) + len(store["extrapolate"])
    console.print(
        f"{len(store['train']):,} for training and {n_tests:,} for testing, by DeepMind's "
        "generator, such as:"
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    for module in MODULES:
        example = next(store["interpolate"].examples(module))
        table.add_row(
            Text(module, style="dim"), Text(example.question), Text(example.answer, style="bold")
        )
    console.print(table)


def _run(name: str, folder: Path, steps: int) -> Run:
    arguments = (
        f"--config={MODELS[name]}",
        f"--data={folder / QUESTIONS}",
        f"--training.steps={steps}",
        "--training.log_every=10",
        "--validation.every=250",
        "--validation.count=256",
        "--data.batch_size=32",
        f"--data.weights={json.dumps(MODULES)}",
        "--optim.learning_rate=3e-3",
        "--optim.warmup=50",
        "--model.n_heads=8",
    )
    return Run(name, folder / name, arguments)


def _score(folder: Path, run: Run) -> Results:
    return evaluate(
        run.folder,
        folder / QUESTIONS,
        folder / f"{run.name}.json",
        Choice(splits=("interpolate", "extrapolate")),
        Work(predictions=_predictions(folder, run), overwrite=True),
        show=progress,
    )


def _predictions(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}-answers.jsonl"


def _answers_table(folder: Path, runs: Sequence[Run]) -> Table:
    """Return questions of each module that the first model answers correctly or wrongly."""
    table = headed_table("question", "answer", *(run.name for run in runs))
    files = [_predictions(folder, run).read_text("utf-8").splitlines() for run in runs]
    wanted = {(module, right): SHOWN for module in MODULES for right in (True, False)}
    for lines in zip(*files, strict=True):
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        key = answers[0]["module"], answers[0]["right"]
        if answers[0]["split"] == "interpolate" and wanted.get(key, 0):
            wanted[key] -= 1
            table.add_row(
                Text(answers[0]["question"]),
                Text(answers[0]["answer"]),
                *(predicted(line["predicted"], line["right"]) for line in answers),
            )
    return table
