"""Sections of results: Table 1, the modules of each split, kinds of mistakes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tp_transformer.data.task import Task
from tp_transformer.scoring.compare import (
    is_published,
    module_names,
    named_apart,
    question_pairs,
    task_of,
)
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.published import SOURCE
from tp_transformer.scoring.results import FORMAT, ModuleScore, Results
from tp_transformer.show.comparison import averages_table, modules_table, pair_line, seed_lines
from tp_transformer.show.report import charts
from tp_transformer.show.report.inputs import Inputs
from tp_transformer.show.report.markup import (
    Markup,
    Section,
    bullets,
    chart,
    command,
    element,
    folded,
    heading,
    paragraph,
    table,
)
from tp_transformer.show.table import Cell, NumberCell, Table

_EXAMPLES = 4  # mistakes of each kind and model


def scores(inputs: Inputs) -> list[Section]:
    """Return the sections of all results of `tpt evaluate`, task by task."""
    found = {
        file.path: Results.read(file.path)
        for file in inputs.files
        if file.values.get("format") == FORMAT
    }
    by_task: dict[str, dict[Path, Results]] = {}
    for path, results in found.items():
        by_task.setdefault(results.task.name, {})[path] = results
    return [
        section
        for name, own in by_task.items()
        for section in _of_task(inputs, own, f" ({name})" if len(by_task) > 1 else "")
    ]


def _of_task(inputs: Inputs, found: dict[Path, Results], of_task: str) -> list[Section]:
    results, sources = named_apart(list(found.values())), list(found)
    made = [
        element("div", paragraph(f"{one.name}, {inputs.shown(path)}", "label"), _made_by(one))
        for one, path in zip(results, sources, strict=True)
    ]
    sections = [_averages(results, made), _modules(results), _mistakes(results)]
    return [
        replace(section, title=section.title + of_task, sources=sources)
        for section in sections
        if section is not None
    ]


def _made_by(results: Results) -> Markup:
    recorded = results.made.get("command")
    return command(None if recorded is None else str(recorded))


def _averages(results: Sequence[Results], made: Sequence[Markup]) -> Section:
    averages = averages_table(results)
    pairs = [
        pair_line(pair, first.name, other.name)
        for first, other, found in question_pairs(results)
        for pair in found
    ]
    differences = [heading("Differences on the same questions"), bullets(pairs)] if pairs else []
    seeds = seed_lines(results)
    over_seeds = [heading("Over seeds"), bullets(seeds)] if seeds else []
    published = f" Rows of the paper are as printed by {SOURCE}; the others were measured."
    return Section(
        title=averages.title,
        summary="The share of test questions answered exactly, averaged over modules."
        + (published if is_published(results) else ""),
        body=[table(replace(averages, title="Exact match")), *differences, *over_seeds, *made],
        sources=(),
    )


def _modules(results: Sequence[Results]) -> Section:
    task = task_of(results)
    splits = [
        split
        for split in task.test_splits or task.splits
        if any(split in one.splits for one in results)
    ] or [split for split in task.splits if any(split in one.splits for one in results)]
    drawn = [panel for split in splits for panel in _bars(results, split, task)]
    return Section(
        title="Modules",
        summary="The share of correct answers on each module of each test split, by decreasing "
        "accuracy of the first model. The whiskers are 95% Wilson intervals over questions.",
        body=[
            element("div", *drawn, class_="figures"),
            *(_numbers(modules_table(results, split)) for split in splits),
        ],
        sources=(),
    )


def _bars(results: Sequence[Results], split: str, task: Task) -> list[Markup]:
    """Return as many charts as the modules of a split need to fit on printed pages."""
    own = [one for one in results if split in one.splits]
    first = own[0].splits[split].modules
    names = sorted(
        module_names(own, split),
        key=lambda name: -first[name].accuracy if name in first else 1.0,
    )
    groups = [
        {
            name: charts.Bar(share=score.accuracy, interval=score.interval, tip=_tip(name, score))
            for name, score in one.splits[split].modules.items()
        }
        for one in own
    ]
    legend = [f"{one.name}, {one.splits[split].average[0]:.1%} on average" for one in own]
    panels = charts.divided(names, len(groups))
    found = []
    for number, panel in enumerate(panels, 1):
        name, caption = f"accuracy-{split}", f"{task.title(split)}: accuracy by module"
        if len(panels) > 1:
            name, caption = f"{name}-{number}", f"{caption} ({number} of {len(panels)})"
        found.append(chart(charts.bars(caption, panel, groups, legend), name, caption))
    return found


def _tip(name: str, score: ModuleScore) -> str:
    low, high = score.interval
    return f"{name}: {score.right:,} of {score.n:,} correct; {low:.1%} to {high:.1%}"


def _numbers(modules: Table) -> Markup:
    numbers = replace(modules, title=f"{modules.title}: numbers")
    return folded(numbers.title, table(numbers))


def _mistakes(results: Sequence[Results]) -> Section | None:
    counted = [one for one in results if any(score.wrong for score in _scores(one))]
    if not counted:
        return None
    body: list[list[Cell]] = []
    for kind, meaning in KINDS.items():
        row: list[Cell] = [kind, meaning]
        for one in counted:
            total = sum(sum(score.wrong.values()) for score in _scores(one))
            count = sum(score.wrong.get(kind, 0) for score in _scores(one))
            row.append(NumberCell(count, f"{count:,} ({count / total:.1%})"))
        body.append(row)
    heads = ["Kind", "Meaning", *(each.name for each in counted)]
    by_kind = Table(title="Wrong answers by kind", heads=heads, rows=body, n_texts=2)
    heads = ["Kind", "Module", "Question", "Correct", "Answered", "Model"]
    rows = _example_rows(counted)
    examples = Table(title="Examples", heads=heads, rows=rows, n_texts=len(heads))
    shown = [table(examples, whole=[len(heads) - 1])] if rows else []
    return Section(
        title="Mistakes",
        summary="What is wrong with the wrong answers. Those that were decoded are counted: a "
        "sample of each module and split, or all of them. Each has the first kind that applies.",
        body=[table(by_kind), *shown],
        sources=(),
    )


def _scores(results: Results) -> list[ModuleScore]:
    return [score for split in results.splits.values() for score in split.modules.values()]


def _example_rows(results: Sequence[Results]) -> list[list[Cell]]:
    """Return examples of each kind and model, from as many modules as possible."""
    found: list[list[Cell]] = []
    for kind in KINDS:
        for one in results:
            ranked = [
                (place, module, mistake)
                for split in one.splits.values()
                for module, score in split.modules.items()
                for place, mistake in enumerate(m for m in score.examples if m.kind == kind)
            ]
            ranked.sort(key=lambda item: item[0])  # the first of every module, then the second
            found += [
                [kind, module, mistake.question, mistake.answer, mistake.predicted, one.name]
                for _, module, mistake in ranked[:_EXAMPLES]
            ]
    return found
