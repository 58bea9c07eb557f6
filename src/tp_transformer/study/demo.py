"""The demos: what the bundled models answer, and two tiny models that are trained live.

The questions of the first are generated with a seed that no bundled model was trained with, and a
model is scored on the modules that its card has. All files are kept, and the same command resumes
an interrupted demo. Steps alone end the training, so that the scores do not depend on the speed or
the load of the machine.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tp_transformer.data.mathematics.modules import INTERPOLATE
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.store import Store
from tp_transformer.errors import UserError
from tp_transformer.interpret.core.sample import Sample, draw
from tp_transformer.interpret.roles.analysis import layer_clusters
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import AnyModel, load
from tp_transformer.model.transformer import Transformer
from tp_transformer.report.comparison import Comparison
from tp_transformer.report.page import write_report
from tp_transformer.report.roles import most_structural, roles_figure
from tp_transformer.report.terminal import heading
from tp_transformer.runtime.files import refuse_other_content
from tp_transformer.runtime.progress import progress
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.results import Results
from tp_transformer.study.engine import StudyRun, generated_store, train_side_by_side
from tp_transformer.table import Cell, Table, plain_table
from tp_transformer.training.config import RunConfig

SEED = 0  # of the questions; a test compares it with the seeds of the bundled models
QUESTIONS, REPORT = "questions", "report.html"
SHARES = (0.5, 0.9)  # modules of which more is answered are counted
FEW = 10  # modules, up to which they are listed instead of their areas
# Modules with fractions; roles are shown in questions of the one that is answered best.
FRACTIONS = ("arithmetic__mixed", "arithmetic__mul_div_multiple")
CLUSTERS = 10
SUM = "What is 3 + 4?"
TRAINED = {"tp-transformer": "tp-transformer-tiny", "transformer": "transformer-tiny"}
# In a minute, models learn the first module well, the second in part, and the third hardly. The
# numbers are proportions of a batch.
MODULES = {"numbers__place_value": 7, "comparison__pair": 2, "arithmetic__add_or_sub": 1}
LONGEST_PREDICTION = 40  # characters

Answered = tuple[str, str, str, Mapping[str, str]]  # area, question, answer; of each model


def demo(
    folder: str | Path,
    console: Console | None = None,
    *,
    test_count: int = 100,
    diagnose: int = 5,
) -> None:
    """Show what the bundled models answer, their scores and their roles, and write a report.

    There are `test_count` questions of each module; for the report, `diagnose` wrong answers of
    each module are diagnosed.
    """
    folder = Path(folder)
    refuse_other_content(folder, "the demo", is_begun=(folder / QUESTIONS).exists())
    console = console or Console(highlight=False)
    models = {name: load(name) for name in dict.fromkeys([bundled.default(), *bundled.names()])}
    heading(console, "1. Models that were trained before, and new questions")
    order = Order(splits=(INTERPOLATE,), test_count=test_count, seed=SEED)
    store = generated_store(order, folder / QUESTIONS)
    for name, model in models.items():
        card = bundled.FOLDER / name / bundled.CARD
        text = f": {model.n_parameters:,} parameters; its card: {card}"
        console.print(Text.assemble((name, "bold"), text), soft_wrap=True)
    split = store[INTERPOLATE]
    console.print(
        f"{len(split):,} questions of {len(split.modules)} modules, by DeepMind's generator with "
        f"seed {SEED}, which no model was trained with."
    )
    heading(console, f"2. The roles of fractions in {bundled.default()}")
    question = _show_roles(models[bundled.default()], store, console)
    groups = _groups(models, store)
    heading(console, "3. Their answers")
    for modules, names in groups.items():
        answers = _answers({name: models[name] for name in names}, store, modules)
        console.print(_answers_table(answers, count=1))
    heading(console, "4. Their scores")
    files = {name: folder / f"{name}.json" for name in models}
    work = EvaluationOptions(diagnose=diagnose, overwrite=True)
    results: dict[str, Results] = {}
    for modules, names in groups.items():
        choice = QuestionChoice(modules=modules, splits=(INTERPOLATE,))
        for name in names:
            results[name] = evaluate(name, store, files[name], choice, work, show=progress)
    _show_scores(results, groups.values(), console)
    heading(console, "5. The report")
    write_report(list(files.values()), folder / REPORT)
    purposes = {
        REPORT: "scores by module, mistakes with examples: open it in a browser",
        QUESTIONS: "the questions: tpt data show",
        **{file.name: "scores: tpt compare" for file in files.values()},
    }
    _show_files(console, folder, purposes, (["solve", question], ["explore"], ["demo", "--train"]))


def _groups(models: Iterable[str], store: Store) -> dict[tuple[str, ...], list[str]]:
    """Return the models that are scored on the same modules, by these modules."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in models:
        file = bundled.FOLDER / name / bundled.RESULTS
        known = Results.read(file).splits[INTERPOLATE].modules if file.is_file() else ()
        modules = [module for module in store[INTERPOLATE].modules if module in known or not known]
        groups.setdefault(tuple(modules), []).append(name)
    return groups


def _answers(
    models: Mapping[str, AnyModel], store: Store, modules: Sequence[str]
) -> Iterator[Answered]:
    """Yield the first question of each module with the answers of the models."""
    split, has_few = store[INTERPOLATE], len(modules) <= FEW
    questions, answers = split.rows([split.modules[module].start for module in modules])
    solved = [model.solve(questions) for model in models.values()]
    for module, question, answer, *texts in zip(modules, questions, answers, *solved, strict=True):
        area, _, name = module.partition("__")
        by_model = dict(zip(models, texts, strict=True))
        yield name if has_few else area, question, answer, by_model


def _answers_table(answered: Iterable[Answered], count: int) -> RichTable:
    """Return the first correct and wrong answers of the first model in each area."""
    table = plain_table(show_header=False)
    table.add_column("area", style="dim")
    table.add_column("question", overflow="fold")
    n_shown: Counter[tuple[str, bool]] = Counter()
    for area, question, answer, predictions in answered:
        is_right = next(iter(predictions.values())) == answer
        if n_shown[area, is_right] == count:
            continue
        n_shown[area, is_right] += 1
        lines = plain_table(show_header=False)
        lines.add_column("name", style="dim")
        lines.add_column("answer", overflow="fold")
        lines.add_row("correct answer", Text(f"  {answer}"))
        for name, text in predictions.items():
            mark, colour = ("✓", "green") if text == answer else ("✗", "red")
            if len(text) > LONGEST_PREDICTION:  # models with little training may not end
                text = f"{text[:LONGEST_PREDICTION]}…"
            lines.add_row(name, Text(f"{mark} {text}", style=colour))
        table.add_row(area, Group(Text(question, style="bold"), Padding(lines, (0, 0, 1, 0))))
    return table


def _show_scores(
    results: Mapping[str, Results], groups: Iterable[Sequence[str]], console: Console
) -> None:
    """Print the averages of all models, and the differences of those with the same questions."""
    heads = ["model", "modules", "correct, with a 95% interval", *(f">{x:.0%}" for x in SHARES)]
    rows: list[list[Cell]] = []
    for name, each in results.items():
        split = each.splits[INTERPOLATE]
        average, (low, high) = split.average
        accuracies = [score.accuracy for score in split.modules.values()]
        counts = [str(sum(accuracy > share for accuracy in accuracies)) for share in SHARES]
        correct = f"{average:.2%} ({low:.1%} to {high:.1%})"
        rows.append([name, str(len(accuracies)), correct, *counts])
    console.print(Table(heads=heads, rows=rows).terminal())
    for names in groups:
        for line in Comparison(*(results[name] for name in names)).differences:
            console.print(line)
    console.print(
        f"Exact match averaged over modules; {heads[-2]} and {heads[-1]} count modules. Each model "
        "was trained once, with one seed: intervals and p-values are about questions, not seeds."
    )


def _show_roles(model: AnyModel, store: Store, console: Console) -> str:
    """Show the head of the last encoder layer whose clusters say most about fractions.

    The questions are those that the model answers correctly, of the module of which it answers
    most; if it answers none, any questions. Returns a question that it answers, if it does.
    """
    if not isinstance(model, Transformer):
        raise TypeError("the bundled model is not a Transformer")
    samples = [_answered(model, store, module) for module in FRACTIONS]
    answered = max(filter(None, samples), key=len, default=None)
    sample = answered or draw(model, store, module=FRACTIONS[0], answered=False)
    head = most_structural(layer_clusters(model, sample, n_clusters=CLUSTERS, seed=0))
    (first,) = sample.shown(1, console.width)
    question, answer = sample.questions[first], sample.answers[first]
    if answered is not None:
        console.print(f"It answers {question} correctly: {answer}\n", markup=False)
    console.print(roles_figure(sample, head, console))
    console.print(
        f"Head {head.head} of the last encoder layer, {CLUSTERS} clusters of its role vectors at "
        f"all characters of {sample.origin}. Clusters of numerators are blue, clusters of "
        f"denominators golden, others grey; names say what nearly all positions of a cluster have "
        f"in common. {head.n_structural} names say more than the character, the most of all heads "
        "of the layer. tpt interpret roles compares this with untrained models and with the text."
    )
    return SUM if answered is None else question


def _answered(model: Transformer, store: Store, module: str) -> Sample | None:
    """Return the questions of a module that a model answers correctly, or None."""
    try:
        return draw(model, store, module=module)
    except UserError:
        return None


def live_demo(
    folder: str | Path,
    console: Console | None = None,
    *,
    count: int = 6000,
    test_count: int = 500,
    steps: int = 2000,
) -> None:
    """Generate questions, train two tiny models side by side, score both, and show the results.

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
    order = Order(modules=tuple(MODULES), count=count, test_count=test_count, seed=SEED)
    store = generated_store(order, folder / QUESTIONS)
    tests = store.task.test_splits
    console.print(
        f"{len(store['train']):,} for training and {sum(len(store[name]) for name in tests):,} "
        "for testing, by DeepMind's generator, such as:"
    )
    examples = [next(store[INTERPOLATE].examples(module)) for module in MODULES]
    rows = [(each.module, each.question, each.answer) for each in examples]
    console.print(Table(heads=("module", "question", "answer"), rows=rows, n_texts=3).terminal())
    heading(console, "2. Two models train on them, side by side")
    runs = [_tiny_run(name, folder, steps) for name in TRAINED]
    console.print(Text(f"$ {shlex.join(['tpt', *runs[0].command()])}", style="dim"), soft_wrap=True)
    train_side_by_side(runs, console)
    heading(console, "3. Both answer test questions")
    answers = {run.name: folder / f"{run.name}-answers.jsonl" for run in runs}
    results = [
        run.score(
            QuestionChoice(splits=tests),
            EvaluationOptions(predictions=answers[run.name], overwrite=True),
        )
        for run in runs
    ]
    Comparison(*results).render(console)
    console.print(
        "Each model was trained once, with one seed. Whether the difference is due to the models "
        "or to the seed takes several: tpt train --seeds."
    )
    heading(console, "4. Some of their answers")
    console.print(_answers_table(_recorded(answers), count=2))
    heading(console, "5. The files")
    files = {
        QUESTIONS: "the questions: tpt data show",
        **dict.fromkeys(TRAINED, "a run: model, settings, metrics"),
        **{run.results.name: "scores: tpt compare" for run in runs},
        **{file.name: "all answers" for file in answers.values()},
    }
    model = ["--model", str(runs[0].folder)]
    analysis = ["--data", str(folder / QUESTIONS), "--module", next(iter(MODULES))]
    commands = (
        ["solve", "What is the hundreds digit of 31415?", *model],
        ["interpret", "attention", *model, *analysis, "--out", str(folder / "analysis")],
    )
    _show_files(console, folder, files, commands)


def _tiny_run(name: str, folder: Path, steps: int) -> StudyRun:
    config = RunConfig.of(
        TRAINED[name],
        model={"n_heads": 8},
        data={"batch_size": 32, "weights": MODULES},
        optim={"learning_rate": 3e-3, "warmup": 50},
        training={"steps": steps, "log_every": 10},
        validation={"every": 250, "count": 256},
    )
    return StudyRun(
        name=name,
        preset=TRAINED[name],
        config=config,
        data=folder / QUESTIONS,
        folder=folder / name,
        results=folder / f"{name}.json",
        threads=None,
    )


def _recorded(files: Mapping[str, Path]) -> Iterator[Answered]:
    """Yield questions with the recorded answers of the models, by module."""
    lines = [file.read_text("utf-8").splitlines() for file in files.values()]
    for records in zip(*lines, strict=True):
        first, *_ = answers = [json.loads(record) for record in records]
        if first["split"] == INTERPOLATE:
            predictions = (answer["predicted"] for answer in answers)
            by_model = dict(zip(files, predictions, strict=True))
            yield first["module"], first["question"], first["answer"], by_model


def _show_files(
    console: Console, folder: Path, files: Mapping[str, str], commands: Iterable[Sequence[str]]
) -> None:
    """Print the files of a folder with their purposes, and the next commands."""
    console.print(Text(f"In {folder}:"), soft_wrap=True)
    table = plain_table(show_header=False)
    for name, purpose in files.items():
        table.add_row(Text(name), Text(purpose, style="dim"))
    console.print(table)
    for command in commands:
        line = shlex.join(["tpt", *command])
        console.print(Text.assemble(("Next:  ", "dim"), line), soft_wrap=True)
