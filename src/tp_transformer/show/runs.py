"""Sections of runs: their settings and learning curves."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer.errors import FolderError
from tp_transformer.html import element, paragraph
from tp_transformer.runtime.run_folder import CONFIG, METRICS, name_of, read_origin
from tp_transformer.settings import read
from tp_transformer.show.charts import curves_of, plot_curves, plot_losses
from tp_transformer.show.inputs import Inputs
from tp_transformer.show.sections import Section, bullets, charts, command, table
from tp_transformer.table import Cell, NumberCell, Table
from tp_transformer.training.records import TRAIN, Record, read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    counts = Counter(name_of(run.absolute()) for run in inputs.runs)
    names = {
        run: name if counts[name := name_of(run.absolute())] == 1 else inputs.shown(run)
        for run in inputs.runs
    }
    records = {run: _records(run) for run in inputs.runs}
    commands = [
        element("div", paragraph(names[run], "label"), command(_command(inputs, run)))
        for run in inputs.runs
    ]
    heads = ["Run", "Parameters", "Steps", *_SETTINGS]
    body = [_row(run, names[run], records[run]) for run in inputs.runs]
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


def _command(inputs: Inputs, run: Path) -> str:
    origin, shown = read_origin(run), inputs.shown(run)
    words = ["tpt", "train", "--config", f"{shown}/{CONFIG}"]
    words += ["--data", inputs.shown(origin["data"]), "--run", shown]
    initial = origin.get("init_from")
    if isinstance(initial, dict) and "folder" in initial:
        words += ["--init-from", inputs.shown(str(initial["folder"]))]
    return shlex.join(words)


def _row(run: Path, name: str, records: Sequence[Record]) -> list[Cell]:
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
