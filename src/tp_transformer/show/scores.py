"""Sections of results: Table 1, the modules of each split, kinds of mistakes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer.html import Markup, element, paragraph
from tp_transformer.scoring.compare import is_published, module_names, named_apart, task_of
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.published import SOURCE
from tp_transformer.scoring.results import FORMAT, ModuleScore, Results
from tp_transformer.show.charts import plot_split
from tp_transformer.show.comparison import (
    averages_table,
    modules_table,
    question_lines,
    seed_lines,
)
from tp_transformer.show.inputs import Inputs
from tp_transformer.show.sections import Section, bullets, charts, command, folded, heading, table
from tp_transformer.table import Cell, NumberCell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXAMPLES = 4  # mistakes of each kind and model


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
    counted = [each for each in results if any(score.wrong for score in _scores(each))]
    if not counted:
        return []
    body: list[list[Cell]] = []
    for kind, meaning in KINDS.items():
        row: list[Cell] = [kind, meaning]
        for each in counted:
            total = sum(sum(score.wrong.values()) for score in _scores(each))
            count = sum(score.wrong.get(kind, 0) for score in _scores(each))
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


def _scores(results: Results) -> list[ModuleScore]:
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
