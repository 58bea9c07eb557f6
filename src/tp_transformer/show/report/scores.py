"""Sections of results: Table 1, the modules of each split, kinds of mistakes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tp_transformer.data.task import Task
from tp_transformer.published import SOURCE
from tp_transformer.scoring.compare import (
    AverageCell,
    coverage,
    is_published,
    module_names,
    named_apart,
    rows,
    task_of,
)
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.results import FORMAT, ModuleScore, Results
from tp_transformer.scoring.seeds import question_pairs
from tp_transformer.show.report import charts
from tp_transformer.show.report.inputs import Inputs
from tp_transformer.show.report.markup import (
    CellText,
    Markup,
    NumberCell,
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
from tp_transformer.show.table import (
    above_95,
    averages_heads,
    averages_title,
    footnotes,
    pair_line,
    seed_lines,
    steps_of,
)

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
    task, title = task_of(results), averages_title(results)
    heads = ["Model", "Source", "Weights", "Steps", *averages_heads(task)]
    body: list[list[CellText]] = []
    for row in rows(results):
        steps = "-" if row.steps is None else NumberCell(row.steps, steps_of(row))
        body.append([row.name, row.source, _weights(row.weights), steps])
        for split in task.splits:
            cell = row.cells.get(split)
            body[-1] += [_average(task, split, cell), *above_95(split, cell)]
    pairs = [
        pair_line(one, first.name, other.name)
        for first, other, found in question_pairs(results)
        for one in found
    ]
    differences = [heading("Differences on the same questions"), bullets(pairs)] if pairs else []
    seeds = seed_lines(results)
    over_seeds = [heading("Over seeds"), bullets(seeds)] if seeds else []
    published = f" Rows of the paper are as printed by {SOURCE}; the others were measured."
    return Section(
        title=title,
        summary="The share of test questions answered exactly, averaged over modules."
        + (published if is_published(results) else ""),
        body=[
            table("Exact match, %", heads, body, footnotes(results), texts=(0, 1)),
            *differences,
            *over_seeds,
            *made,
        ],
        sources=(),
    )


def _weights(text: str) -> CellText:
    factor = {"M": 1e6, "k": 1e3}.get(text[-1:])
    return text if factor is None else NumberCell(float(text[:-1]) * factor, text)


def _average(task: Task, split: str, cell: AverageCell | None) -> CellText:
    if cell is None:
        return "-"
    text = f"{100 * cell.accuracy:.2f}"
    if cell.interval is not None:
        text += f" ±{100 * (cell.interval[1] - cell.interval[0]) / 2:.2f}"
    if covered := coverage(task, split, cell.n_modules):
        text += f"\n{covered}"
    return NumberCell(cell.accuracy, text)


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
            *(_module_table(results, split, task) for split in splits),
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


def _module_table(results: Sequence[Results], split: str, task: Task) -> Markup:
    own = [one for one in results if split in one.splits]
    body: list[list[CellText]] = []
    for name in module_names(own, split):
        scores = [one.splits[split].modules.get(name) for one in own]
        questions = max(score.n for score in scores if score is not None)
        cells = ["-" if score is None else _accuracy(score) for score in scores]
        body.append([name, NumberCell(questions, f"{questions:,}"), *cells])
    heads = ["Module", "Questions", *(one.name for one in own)]
    title = f"{task.title(split)}: numbers"
    return folded(title, table(title, heads, body))


def _accuracy(score: ModuleScore) -> CellText:
    low, high = score.interval
    return NumberCell(score.accuracy, f"{score.accuracy:.1%} ({low:.1%} to {high:.1%})")


def _mistakes(results: Sequence[Results]) -> Section | None:
    counted = [one for one in results if any(score.wrong for score in _scores(one))]
    if not counted:
        return None
    body: list[list[CellText]] = []
    for kind, meaning in KINDS.items():
        row: list[CellText] = [kind, meaning]
        for one in counted:
            total = sum(sum(score.wrong.values()) for score in _scores(one))
            count = sum(score.wrong.get(kind, 0) for score in _scores(one))
            row.append(NumberCell(count, f"{count:,} ({count / total:.1%})"))
        body.append(row)
    title = "Wrong answers by kind"
    heads = ["Kind", "Meaning", *(one.name for one in counted)]
    examples = _example_rows(counted)
    example_heads = ["Kind", "Module", "Question", "Correct", "Answered", "Model"]
    texts = range(len(example_heads))
    shown = table("Examples", example_heads, examples, texts=texts, whole=texts[-1:])
    return Section(
        title="Mistakes",
        summary="What is wrong with the wrong answers. Those that were decoded are counted: a "
        "sample of each module and split, or all of them. Each has the first kind that applies.",
        body=[table(title, heads, body, texts=(0, 1)), *([shown] if examples else [])],
        sources=(),
    )


def _scores(results: Results) -> list[ModuleScore]:
    return [score for split in results.splits.values() for score in split.modules.values()]


def _example_rows(results: Sequence[Results]) -> list[list[CellText]]:
    """Return examples of each kind and model, from as many modules as possible."""
    found: list[list[CellText]] = []
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
