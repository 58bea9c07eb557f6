"""The demo: roles of fractions, the answers and scores of the bundled models, and a report.

The questions are generated with a seed that no bundled model was trained with. A model is scored on
the modules that its card has. All files are kept; the same command resumes an interrupted demo.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
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
from tp_transformer.runtime.files import refuse_other_content
from tp_transformer.runtime.progress import progress
from tp_transformer.scoring.compare import pairs
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Choice, Work
from tp_transformer.scoring.results import Results, SplitScore
from tp_transformer.scoring.statistics import average_interval
from tp_transformer.show.comparison import pair_line
from tp_transformer.show.report.report import write_report
from tp_transformer.show.roles import most_structural, roles_figure
from tp_transformer.show.table import heading
from tp_transformer.study.parts import generated, predicted, show_files

SEED = 0  # of the questions; a test compares it with the seeds of the bundled models
QUESTIONS, REPORT = "questions", "report.html"
ALL = "all"
FEW = 10  # modules, up to which they are listed instead of their areas
CORRECT = "correct answer"
SHARES = (0.5, 0.9)  # accuracies above which modules are counted
# Modules with fractions; roles are shown in questions of the one that is answered best.
FRACTIONS = ("arithmetic__mixed", "arithmetic__mul_div_multiple")
CLUSTERS = 10
SUM = "What is 3 + 4?"


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
    store = generated(order, folder / QUESTIONS)
    _introduce(models, store, console)
    heading(console, f"2. The roles of fractions in {bundled.default()}")
    question = _show_roles(models[bundled.default()], store, console)
    groups = _groups(models, store)
    heading(console, "3. Their answers")
    for modules, names in groups.items():
        console.print(_answers_table({name: models[name] for name in names}, store, modules))
    heading(console, "4. Their scores")
    for modules, names in groups.items():
        _show_scores([_score(folder, name, modules, diagnose) for name in names], console)
    heading(console, "5. The report")
    write_report([folder / _file(name) for name in models], folder / REPORT)
    files = {
        REPORT: "scores by module, mistakes with examples: open it in a browser",
        QUESTIONS: "the questions: tpt data show",
        **{_file(name): "scores: tpt compare" for name in models},
    }
    show_files(console, folder, files, (["solve", question], ["explore"], ["demo", "--train"]))


def _groups(models: Iterable[str], store: Store) -> dict[tuple[str, ...], list[str]]:
    """Return the models that are scored on the same modules, by these modules."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in models:
        file = bundled.FOLDER / name / bundled.RESULTS
        own = Results.read(file).splits[INTERPOLATE].modules if file.is_file() else ()
        modules = [module for module in store[INTERPOLATE].modules if module in own or not own]
        found.setdefault(tuple(modules), []).append(name)
    return found


def _introduce(models: Mapping[str, AnyModel], store: Store, console: Console) -> None:
    for name, model in models.items():
        card = bundled.FOLDER / name / bundled.CARD
        console.print(
            Text.assemble((name, "bold"), f": {model.n_parameters:,} parameters; its card: {card}"),
            soft_wrap=True,
        )
    split = store[INTERPOLATE]
    console.print(
        f"{len(split):,} questions of {len(split.modules)} modules, by DeepMind's generator with "
        f"seed {SEED}, which no model was trained with."
    )


def _answers_table(models: Mapping[str, AnyModel], store: Store, modules: Sequence[str]) -> Table:
    """Return a correct and a wrong answer of the first model in each area, if it has both.

    They are chosen among the first questions of the modules, in the order of the dataset.
    """
    split = store[INTERPOLATE]
    questions, answers = split.rows([split.modules[module].start for module in modules])
    solved = [model.solve(questions) for model in models.values()]
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column("area", style="dim")
    table.add_column("question", overflow="fold")
    seen: set[tuple[str, bool]] = set()
    for module, question, answer, *given in zip(modules, questions, answers, *solved, strict=True):
        key = _part(module, modules), given[0] == answer
        if key not in seen:
            seen.add(key)
            marked = {
                name: predicted(text, text == answer)
                for name, text in zip(models, given, strict=True)
            }
            table.add_row(key[0], _answers(question, {CORRECT: Text(f"  {answer}"), **marked}))
    return table


def _answers(question: str, answers: Mapping[str, Text]) -> Group:
    """Return a question, and below it answers with their names."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column("name", style="dim", min_width=max(map(len, answers)))
    table.add_column("answer", overflow="fold")
    for name, answer in answers.items():
        table.add_row(name, answer)
    return Group(Text(question, style="bold"), Padding(table, (0, 0, 1, 0)))


def _part(module: str, modules: Sequence[str]) -> str:
    """Return the area of a module or, if there are few modules, its name without the area."""
    area, _, name = module.partition("__")
    return name if len(modules) <= FEW else area


def _file(name: str) -> str:
    return f"{name}.json"


def _score(folder: Path, name: str, modules: tuple[str, ...], diagnose: int) -> Results:
    return evaluate(
        name,
        folder / QUESTIONS,
        folder / _file(name),
        Choice(modules=modules, splits=(INTERPOLATE,)),
        Work(diagnose=diagnose, overwrite=True),
        show=progress,
    )


def _show_scores(results: Sequence[Results], console: Console) -> None:
    console.print(_areas_table(results))
    for found in results:
        modules = found.splits[INTERPOLATE].modules.values()
        counts = ", ".join(
            f"{sum(score.accuracy > share for score in modules)} above {share:.0%}"
            for share in SHARES
        )
        console.print(f"{found.name}: of {len(modules)} modules, {counts}.")
    first, *others = results
    for other, (pair,) in zip(others, pairs(first, others), strict=True):
        console.print(pair_line(pair, first.name, other.name))
        console.print(
            "Each model was trained once, with one seed: this is a difference of two models, "
            "not yet of two architectures."
        )


def _areas_table(results: Sequence[Results]) -> Table:
    """Return the accuracy of each model in each area, averaged over modules, with intervals."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("correct, with a 95% interval")
    table.add_column("modules", justify="right")
    for found in results:
        table.add_column(found.name, justify="right")
    modules = list(results[0].splits[INTERPOLATE].modules)
    parts = {module: _part(module, modules) for module in modules}
    for part in (*dict.fromkeys(parts.values()), ALL):
        own = [module for module in modules if part in (ALL, parts[module])]
        scores = (_averaged(found.splits[INTERPOLATE], own) for found in results)
        style = "bold" if part == ALL else ""
        table.add_row(Text(part), str(len(own)), *scores, style=style)
    return table


def _averaged(split: SplitScore, modules: Sequence[str]) -> str:
    counts = [(split.modules[module].right, split.modules[module].n) for module in modules]
    average, (low, high) = average_interval(counts)
    return f"{average:.1%} ({100 * low:.0f} to {100 * high:.0f})"


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
