"""The section of `tpt bench`: bindings compared at one budget."""

from statistics import fmean

from tp_transformer.foundation.errors import ResultsError
from tp_transformer.foundation.provenance import Values
from tp_transformer.show.bench import (
    ABSENT,
    FORMAT,
    accuracy_text,
    difference_text,
    samples_text,
)
from tp_transformer.show.report.inputs import Inputs, JsonFile
from tp_transformer.show.report.markup import (
    CellText,
    Markup,
    NumberCell,
    Section,
    command,
    element,
    paragraph,
    picture,
    table,
)

_NOTE = (
    "Accuracies are in %: mean ± standard deviation over seeds. Differences are in points, with "
    "Holm-adjusted p over seeds; over questions. Cost: time of a training step relative to none."
)


def bench(inputs: Inputs) -> list[Section]:
    """Return a section for each bench."""
    found = [file for file in inputs.files if file.values.get("format") == FORMAT]
    return [_section(file, inputs) for file in found]


def _section(file: JsonFile, inputs: Inputs) -> Section:
    try:
        body = _body(file)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ResultsError(f"{file.path} is damaged: {error!r:.200}") from error
    return Section(
        title="Bench",
        summary="Bindings of filler and role, trained on the same samples at one budget, and "
        f"their differences from “{file.values['reference']}”.",
        body=[paragraph(inputs.shown(file.path), "about"), *body],
        sources=[file.path],
    )


def _body(file: JsonFile) -> list[Markup]:
    values = file.values
    tasks: dict[str, list[Values]] = {}
    for row in values["rows"]:
        tasks.setdefault(str(row["task"]), []).append(row)
    done = f"{int(values['n_done']):,} of {int(values['n_runs']):,} runs are done."
    body = [_task_table(task, rows, f"{done} {_NOTE}") for task, rows in tasks.items()]
    drawn = file.path.with_suffix(".svg")
    if drawn.is_file():
        caption = "Accuracy of each seed, and the mean over seeds"
        body.append(element("div", picture(drawn, "bench", caption, caption), class_="figures"))
    recorded = values.get("made", {}).get("command")
    return [*body, command(None if recorded is None else str(recorded))]


def _task_table(task: str, rows: list[Values], note: str) -> Markup:
    heads = ["Binding", "Parameters", "Seeds", "Cost", "Samples to 90%"]
    for score in rows[0]["scores"]:
        heads += (
            [str(score["title"]), "difference"] if _has_tests(rows, score) else [score["title"]]
        )
    body = [[*_facts(row), *_scores(row, rows)] for row in rows]
    samples = int(rows[0]["samples"])
    return table(f"{task}, {samples:,} samples", heads, body, [note])


def _has_tests(rows: list[Values], score: Values) -> bool:
    """Whether any variant is compared with the reference on the split of a score."""
    return any(
        other["test"] is not None
        for row in rows
        for other in row["scores"]
        if other["split"] == score["split"]
    )


def _facts(row: Values) -> list[CellText]:
    reached = [samples for samples in row["samples_to_learn"] if samples is not None]
    n_seeds = len(row["seeds"])
    n_parameters = int(row["n_parameters"])
    return [
        str(row["variant"]),
        NumberCell(n_parameters, f"{n_parameters:,}"),
        NumberCell(n_seeds, f"{n_seeds}"),
        ABSENT if row["cost"] is None else NumberCell(row["cost"], f"{row['cost']:.2f}"),
        NumberCell(fmean(reached), samples_text(row["samples_to_learn"])) if reached else ABSENT,
    ]


def _scores(row: Values, rows: list[Values]) -> list[CellText]:
    cells: list[CellText] = []
    for score in row["scores"]:
        cells.append(NumberCell(score["mean"], accuracy_text(score["mean"], score["spread"])))
        if _has_tests(rows, score):
            cells.append(_difference(score["test"]))
    return cells


def _difference(test: Values | None) -> CellText:
    if test is None:
        return ABSENT
    text = difference_text(test["difference"], test["p_seeds_holm"], test["p_questions_holm"])
    return NumberCell(test["difference"], text)
