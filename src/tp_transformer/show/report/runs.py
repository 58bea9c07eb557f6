"""Sections of runs: their settings and learning curves."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tp_transformer.errors import FolderError
from tp_transformer.runtime.run_folder import CONFIG, METRICS, name_of, read_origin
from tp_transformer.scoring.statistics import wilson
from tp_transformer.settings import read
from tp_transformer.show.curve import Curve, curves_of
from tp_transformer.show.report import charts
from tp_transformer.show.report.inputs import Inputs
from tp_transformer.show.report.markup import (
    Markup,
    Section,
    bullets,
    chart,
    command,
    element,
    paragraph,
    table,
)
from tp_transformer.show.table import Cell, NumberCell, Table
from tp_transformer.training.record import TRAIN, VALIDATION, Record, read_records

_SETTINGS = {  # columns of the table, by their place in config.yaml
    "binding": ("model", "binding"),
    "d_model": ("model", "d_model"),
    "layers": ("model", "n_layers"),
    "batch": ("data", "batch_size"),
    "learning rate": ("optim", "learning_rate"),
    "seed": ("training", "seed"),
}


def runs(inputs: Inputs) -> list[Section]:
    """Return the sections of all runs of `tpt train`."""
    if not inputs.runs:
        return []
    names = {run: name_of(run.absolute()) for run in inputs.runs}
    records = {run: _records(run) for run in inputs.runs}
    made = [
        element("div", paragraph(names[run], "label"), command(_command(inputs, run)))
        for run in inputs.runs
    ]
    heads = ["Run", "Parameters", "Steps", *_SETTINGS]
    body = [_row(run, names[run], records[run]) for run in inputs.runs]
    described = Section(
        title="Runs",
        summary="The trained models and the settings in which they may differ; config.yaml of each "
        "run has all of them. The commands repeat the training into the same folders.",
        body=[table(Table(title="Settings", heads=heads, rows=body)), *made],
        sources=inputs.runs,
    )
    curves = _learning_curves(names, records)
    return [described, *([] if curves is None else [curves])]


def _records(run: Path) -> list[Record]:
    file = run / METRICS
    found = read_records(file)[0] if file.is_file() else []
    for record in found:
        if record["kind"] != TRAIN and not (0 <= record["exact_match"] <= 1 <= record["n"]):
            raise FolderError(f"{file} is damaged: a validation at step {record['step']:,}")
    return found


def _command(inputs: Inputs, run: Path) -> str:
    origin, shown = read_origin(run), inputs.shown(run)
    words = ["tpt", "train", "--config", f"{shown}/{CONFIG}"]
    words += ["--data", inputs.shown(origin["data"]), "--run", shown]
    initial = origin.get("init_from")
    if isinstance(initial, dict) and "folder" in initial:
        words += ["--init-from", inputs.shown(str(initial["folder"]))]
    return shlex.join(words)


def _row(run: Path, name: str, records: Sequence[Record]) -> list[Cell]:
    origin = read_origin(run)
    settings = read(run / CONFIG)
    n_parameters = origin.get("n_parameters")
    steps = max((int(record["step"]) for record in records), default=0)
    cells: list[Cell] = [name]
    cells.append(f"{n_parameters:,}" if isinstance(n_parameters, int) else "-")
    cells.append(NumberCell(steps, f"{steps:,}"))
    for section, field in _SETTINGS.values():
        own = settings.get(section)
        value = own.get(field) if isinstance(own, dict) else None
        cells.append("-" if value is None else str(value))
    return cells


def _learning_curves(names: dict[Path, str], records: dict[Path, list[Record]]) -> Section | None:
    found = {run: curves_of(own, names[run]) for run, own in records.items()}
    curves = {run: own for run, own in found.items() if own}
    places = {run: place for place, run in enumerate(names)}
    drawn = [_error_chart(curves, places)] if curves else []
    losses = _losses(names, records, places)
    if losses:
        label = "loss per token of the training batches"
        caption = "Loss on training batches"
        loss = charts.lines(caption, losses, x="training steps", y=label)
        drawn.append(chart(loss, "training-loss", caption))
    if not drawn:
        return None
    return Section(
        title="Learning curves",
        summary="How the models learned: the share of wrong answers on held-out questions at each "
        "validation, with 95% Wilson intervals, and the loss on the training batches.",
        body=[
            element("div", *drawn, class_="figures"),
            bullets(curve.line() for own in curves.values() for curve in own),
        ],
        sources=list(names),
    )


def _error_chart(curves: dict[Path, list[Curve]], places: dict[Path, int]) -> Markup:
    lines = []
    for run, own in curves.items():
        for curve in own:
            shares = [wilson(round((1 - error) * curve.n), curve.n) for error in curve.errors]
            lines.append(
                charts.Line(
                    name=f"{curve.name}, {curve.questions}",
                    colour=places[run],
                    points=[
                        (step, 100 * error)
                        for step, error in zip(curve.steps, curve.errors, strict=True)
                    ],
                    band=[(100 * (1 - high), 100 * (1 - low)) for low, high in shares],
                    is_dashed=curve.kind == VALIDATION and len(own) > 1,
                )
            )
    caption = "Error at each validation"
    drawn = charts.lines(caption, lines, x="training steps", y="wrong answers, %")
    return chart(drawn, "learning-curve", caption)


def _losses(
    names: dict[Path, str], records: dict[Path, list[Record]], places: dict[Path, int]
) -> list[charts.Line]:
    lines = []
    for run, own in records.items():
        points = [
            (record["step"], record["loss"])
            for record in own
            if record["kind"] == TRAIN and record["loss"] is not None
        ]
        if points:
            lines.append(charts.Line(name=names[run], colour=places[run], points=points))
    return lines
