"""The sections of the report: results, runs, analyses and benches.

A function selects its files among the inputs and returns sections; `SECTIONS` has all of them, in
the order of the report.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer.errors import FolderError, ResultsError
from tp_transformer.html import Markup, element, paragraph
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.registry import Registry
from tp_transformer.report.charts import curves_of, plot_curves, plot_losses, plot_split
from tp_transformer.report.comparison import (
    averages_table,
    modules_table,
    question_lines,
    seed_lines,
)
from tp_transformer.report.inputs import BENCH_FORMAT, Inputs, JsonFile
from tp_transformer.report.markup import (
    Section,
    bullets,
    charts,
    command,
    folded,
    heading,
    picture,
    pictures,
    table,
)
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import CONFIG, METRICS, name_of, read_origin
from tp_transformer.scoring.compare import is_published, module_names, named_apart, task_of
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.published import SOURCE
from tp_transformer.scoring.results import FORMAT, ModuleScore, Results
from tp_transformer.settings import read
from tp_transformer.table import Cell, NumberCell, Table
from tp_transformer.training.record import TRAIN, Record, read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTIONS: Registry[Callable[[Inputs], list[Section]]] = Registry("section")

_EXAMPLES = 4  # mistakes of each kind and model
_SETTINGS = {  # columns of the table of runs, by their place in config.yaml
    "binding": ("model", "binding"),
    "d_model": ("model", "d_model"),
    "layers": ("model", "n_layers"),
    "batch": ("data", "batch_size"),
    "learning rate": ("optim", "learning_rate"),
    "seed": ("training", "seed"),
}
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError)  # of a file of another program


@SECTIONS.register("scores")
def scores(inputs: Inputs) -> list[Section]:
    """Return the sections of all results of `tpt evaluate`, task by task."""
    by_task: dict[str, dict[Path, Results]] = {}
    for file in inputs.files:
        if file.values.get("format") == FORMAT:
            results = Results.read(file.path)
            by_task.setdefault(results.task.name, {})[file.path] = results
    return [
        replace(section, title=section.title + (f" ({task})" if len(by_task) > 1 else ""))
        for task, results_of in by_task.items()
        for section in _of_task(inputs, results_of)
    ]


def _of_task(inputs: Inputs, files: dict[Path, Results]) -> list[Section]:
    results, sources = named_apart(list(files.values())), list(files)
    commands = [
        element(
            "div",
            paragraph(f"{each.name}, {inputs.shown(path)}", "label"),
            command(each.made.get("command")),
        )
        for each, path in zip(results, sources, strict=True)
    ]
    sections = [_averages(results, commands), _modules(results), *_mistakes(results)]
    return [replace(section, sources=sources) for section in sections]


def _averages(results: Sequence[Results], commands: Sequence[Markup]) -> Section:
    averages = averages_table(results)
    pairs, seeds = question_lines(results), seed_lines(results)
    differences = [heading("Differences on the same questions"), bullets(pairs)] if pairs else []
    over_seeds = [heading("Over seeds"), bullets(seeds)] if seeds else []
    published = f" Rows of the paper are as printed by {SOURCE}; the others were measured."
    return Section(
        title=averages.title,
        summary="The share of test questions answered exactly, averaged over modules."
        + (published if is_published(results) else ""),
        body=[table(replace(averages, title="Exact match")), *differences, *over_seeds, *commands],
    )


def _modules(results: Sequence[Results]) -> Section:
    task = task_of(results)
    scored = [split for split in task.splits if any(split in each.splits for each in results)]
    splits = [split for split in scored if split in task.test_splits] or scored

    def plot() -> dict[str, "Figure"]:
        return {
            f"accuracy-{split}": plot_split(results, split, _by_accuracy(results, split))
            for split in splits
        }

    numbers = (modules_table(results, split) for split in splits)
    return Section(
        title="Modules",
        summary="The share of correct answers on each module of each test split, by decreasing "
        "accuracy of the first model. The whiskers are 95% Wilson intervals over questions.",
        body=[
            charts(plot),
            *(folded(f"{each.title}: numbers", table(each)) for each in numbers),
        ],
    )


def _by_accuracy(results: Sequence[Results], split: str) -> list[str]:
    """Return the modules of a split by decreasing accuracy of the first model that has it."""
    first = next(each.splits[split].modules for each in results if split in each.splits)
    names = module_names(results, split)
    return sorted(names, key=lambda name: -first[name].accuracy if name in first else 1.0)


def _mistakes(results: Sequence[Results]) -> list[Section]:
    counted = [each for each in results if any(score.wrong for score in _module_scores(each))]
    if not counted:
        return []
    body: list[list[Cell]] = []
    for kind, meaning in KINDS.items():
        row: list[Cell] = [kind, meaning]
        for each in counted:
            total = sum(sum(score.wrong.values()) for score in _module_scores(each))
            count = sum(score.wrong.get(kind, 0) for score in _module_scores(each))
            row.append(NumberCell(count, f"{count:,} ({count / total:.1%})"))
        body.append(row)
    heads = ["Kind", "Meaning", *(each.name for each in counted)]
    tables = [Table(title="Wrong answers by kind", heads=heads, rows=body, n_texts=2)]
    if rows := _example_rows(counted):
        heads = ["Kind", "Module", "Question", "Correct", "Answered", "Model"]
        tables.append(Table(title="Examples", heads=heads, rows=rows, n_texts=len(heads)))
    section = Section(
        title="Mistakes",
        summary="What is wrong with the wrong answers. Those that were decoded are counted: a "
        "sample of each module and split, or all of them. Each has the first kind that applies.",
        body=[table(each) for each in tables],
    )
    return [section]


def _module_scores(results: Results) -> list[ModuleScore]:
    return [score for split in results.splits.values() for score in split.modules.values()]


def _example_rows(results: Sequence[Results]) -> list[list[Cell]]:
    """Return examples of each kind and model, from as many modules as possible."""
    rows: list[list[Cell]] = []
    for kind in KINDS:
        for each in results:
            ranked = [
                (rank, [kind, module, mistake.question, mistake.answer, mistake.predicted])
                for split in each.splits.values()
                for module, score in split.modules.items()
                for rank, mistake in enumerate(m for m in score.examples if m.kind == kind)
            ]
            ranked.sort(key=lambda item: item[0])  # the first of every module, then the second
            rows += [[*cells, each.name] for _, cells in islice(ranked, _EXAMPLES)]
    return rows


@SECTIONS.register("runs")
def runs(inputs: Inputs) -> list[Section]:
    """Return the sections of all runs of `tpt train`."""
    if not inputs.runs:
        return []
    counts = Counter(name_of(run.absolute()) for run in inputs.runs)
    names = {
        run: name if counts[name := name_of(run.absolute())] == 1 else inputs.shown(run)
        for run in inputs.runs
    }
    records = {run: _records(run) for run in inputs.runs}
    commands = [
        element("div", paragraph(names[run], "label"), command(_training_command(inputs, run)))
        for run in inputs.runs
    ]
    heads = ["Run", "Parameters", "Steps", *_SETTINGS]
    body = [_settings_row(run, names[run], records[run]) for run in inputs.runs]
    settings = Section(
        title="Runs",
        summary="The trained models and the settings in which they may differ; config.yaml of each "
        "run has all of them. The commands repeat the training into the same folders.",
        body=[table(Table(title="Settings", heads=heads, rows=body)), *commands],
        sources=inputs.runs,
    )
    return [settings, *_learning_curves(names, records)]


def _records(run: Path) -> list[Record]:
    file = run / METRICS
    records = read_records(file)[0] if file.is_file() else []
    for record in records:
        if record["kind"] != TRAIN and not (0 <= record["exact_match"] <= 1 <= record["n"]):
            raise FolderError(f"{file} is damaged: a validation at step {record['step']:,}")
    return records


def _training_command(inputs: Inputs, run: Path) -> str:
    origin, shown = read_origin(run), inputs.shown(run)
    words = ["tpt", "train", "--config", f"{shown}/{CONFIG}"]
    words += ["--data", inputs.shown(origin["data"]), "--run", shown]
    initial = origin.get("init_from")
    if isinstance(initial, dict) and "folder" in initial:
        words += ["--init-from", inputs.shown(str(initial["folder"]))]
    return shlex.join(words)


def _settings_row(run: Path, name: str, records: Sequence[Record]) -> list[Cell]:
    settings, n_parameters = read(run / CONFIG), read_origin(run).get("n_parameters")
    steps = max((int(record["step"]) for record in records), default=0)
    cells: list[Cell] = [name]
    cells.append(f"{n_parameters:,}" if isinstance(n_parameters, int) else "-")
    cells.append(NumberCell(steps, f"{steps:,}"))
    for section, field in _SETTINGS.values():
        fields = settings.get(section)
        value = fields.get(field) if isinstance(fields, dict) else None
        cells.append("-" if value is None else str(value))
    return cells


def _learning_curves(names: dict[Path, str], records: dict[Path, list[Record]]) -> list[Section]:
    curves = [curve for run in names for curve in curves_of(records[run], names[run])]
    losses = {names[run]: _losses(records[run]) for run in names}
    if not curves and not any(losses.values()):
        return []

    def plot() -> dict[str, "Figure"]:
        plots = {"learning-curve": plot_curves(curves, list(losses))} if curves else {}
        return plots | ({"training-loss": plot_losses(losses)} if any(losses.values()) else {})

    section = Section(
        title="Learning curves",
        summary="How the models learned: the share of wrong answers on held-out questions at each "
        "validation, with 95% Wilson intervals, and the loss on the training batches.",
        body=[charts(plot), bullets(curve.line() for curve in curves)],
        sources=list(names),
    )
    return [section]


def _losses(records: Sequence[Record]) -> list[tuple[int, float]]:
    """Return the steps and losses of training."""
    return [
        (record["step"], record["loss"])
        for record in records
        if record["kind"] == TRAIN and record["loss"] is not None
    ]


@SECTIONS.register("analyses")
def analyses(inputs: Inputs) -> list[Section]:
    """Return a section for each analysis of `tpt interpret`, with the results of all models."""
    by_name: dict[str, list[JsonFile]] = {}
    for file in inputs.files:
        if {"analysis", "model", "sample", "summary"} <= file.values.keys():
            by_name.setdefault(_analysis_of(str(file.values["analysis"])), []).append(file)
    known = [name for name in ANALYSES if name in by_name]
    names = dict.fromkeys([*known, *sorted(by_name)])
    return [_analysis_section(name, by_name[name], inputs) for name in names]


def _analysis_of(name: str) -> str:
    """Return the analysis that a result belongs to: `attention-encoder` is of `attention`."""
    names = [known for known in ANALYSES if name == known or name.startswith(f"{known}-")]
    return max(names, key=len, default=name)


def _analysis_section(name: str, files: Sequence[JsonFile], inputs: Inputs) -> Section:
    body: list[Markup] = []
    for file in files:
        try:
            body += _findings(file, inputs)
        except _DAMAGE as error:
            raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    return Section(
        title=name.replace("-", " ").replace("_", " ").capitalize(),
        summary=ANALYSES[name].about if name in ANALYSES else "An analysis.",
        body=body,
        sources=[file.path for file in files],
    )


def _findings(file: JsonFile, inputs: Inputs) -> list[Markup]:
    values = file.values
    model, sample = values["model"], values["sample"]
    steps = "" if model["step"] is None else f" after {int(model['step']):,} steps"
    about = f"{sample['origin']}; analysis seed {values['seed']}; {inputs.shown(file.path)}"
    return [
        heading(f"{model['name']}{steps}"),
        paragraph(about, "about"),
        bullets(map(str, values["summary"])),
        *map(_recorded_table, values.get("tables", ())),
        *_figures(file),
        command(values["environment"].get("command")),
    ]


def _recorded_table(values: Values) -> Markup:
    """Return a table of a JSON file."""
    rows = [[str(cell) for cell in row] for row in values["rows"]]
    heads, notes = [str(head) for head in values["columns"]], [str(values.get("note", ""))]
    return table(Table(title=str(values["title"]), heads=heads, rows=rows, notes=notes))


def _figures(file: JsonFile) -> list[Markup]:
    """Return the figures beside a JSON file that it names; those that are missing are left out."""
    drawn = []
    for name, caption in file.values.get("captions", {}).items():
        image = file.path.with_name(f"{name}.svg")  # raises if the name is a path
        if image.is_file():
            text = " ".join(str(caption).split())
            below = name if file.values.get("has_captions", True) else text
            drawn.append(picture(image, name, below, f"{name}: {text}"))
    return [pictures(*drawn)] if drawn else []


@SECTIONS.register("bench")
def bench(inputs: Inputs) -> list[Section]:
    """Return a section for each bench of `tpt bench`: bindings compared at one budget."""
    files = [file for file in inputs.files if file.values.get("format") == BENCH_FORMAT]
    return [_bench_section(file, inputs) for file in files]


def _bench_section(file: JsonFile, inputs: Inputs) -> Section:
    values, body = file.values, [paragraph(inputs.shown(file.path), "about")]
    try:
        body += map(_recorded_table, values["tables"])
        recorded = values.get("made", {}).get("command")
        reference = values["reference"]
    except _DAMAGE as error:
        raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    image = file.path.with_suffix(".svg")
    if image.is_file():
        caption = "Accuracy of each seed, and the mean over seeds"
        body.append(pictures(picture(image, "bench", caption, caption)))
    return Section(
        title="Bench",
        summary="Bindings of filler and role, trained on the same samples at one budget, and "
        f"their differences from “{reference}”.",
        body=[*body, command(recorded)],
        sources=[file.path],
    )
