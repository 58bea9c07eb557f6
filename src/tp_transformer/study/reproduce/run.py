"""Running a reproduction: data, runs, scores, analyses, the report.

DIR/scale.json                 what the folder was begun with; other settings are refused
DIR/questions/                 the generated questions
DIR/runs/ROW/seed-0/           a run
DIR/results/ROW-seed-0.json    its scores
DIR/analyses/ROW/NAME/         an analysis of the first seed of a row
DIR/reproduction.json          the accuracies of all rows, and analyses that were not possible
DIR/report.html                all of it on one page
DIR/times.json                 the seconds of each stage, over all interruptions, by the clock and
                               of processor time

Every stage keeps what is complete, so that the same command resumes after an interruption. All
runs have one thread each, so that the result does not depend on how many are left when it resumes.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tp_transformer.data.store import Store, open_store
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.interpret.run import interpret
from tp_transformer.model.checkpoint import load, model_hash
from tp_transformer.runtime.files import refuse_other_content, write_json
from tp_transformer.runtime.processes import n_cores
from tp_transformer.runtime.progress import progress, showing
from tp_transformer.runtime.ranks import choose_device
from tp_transformer.runtime.run_folder import seed_folder
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Choice, Work
from tp_transformer.scoring.results import Results
from tp_transformer.show.comparison import Comparison
from tp_transformer.show.report.report import write_report
from tp_transformer.show.table import heading
from tp_transformer.study.parts import generated
from tp_transformer.study.reproduce.bands import Accuracies, SplitAccuracy, compare, read_band
from tp_transformer.study.reproduce.scale import Scale, ScaleRow
from tp_transformer.study.watch import Run, train_side_by_side

SCALE, REPRODUCTION, TIMES = "scale.json", "reproduction.json", "times.json"
REPORT = "report.html"
QUESTIONS, RUNS, RESULTS, ANALYSES_FOLDER = "questions", "runs", "results", "analyses"
COMPARED = "tp-transformer"  # the row that is compared with the others


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A reproduction at some scale in a folder.

    Attributes:
        scale: what to train, score and interpret
        out: the folder
        data: the store to use in place of generated questions
    """

    scale: Scale
    out: Path
    data: Path | None = None

    @property
    def store(self) -> Path:
        """The folder of the questions."""
        return self.out / QUESTIONS if self.data is None else self.data

    def run_folder(self, row: ScaleRow, seed: int) -> Path:
        """Return the folder of a run."""
        return seed_folder(self.out / RUNS / row.name, seed)

    def results(self, row: ScaleRow, seed: int) -> Path:
        """Return the file of the scores of a run."""
        return self.out / RESULTS / f"{row.name}-seed-{seed}.json"

    def runs(self) -> list[tuple[ScaleRow, int]]:
        """Return the row and seed of each run; those of the first seed come first."""
        return [(row, seed) for seed in self.scale.seeds for row in self.scale.rows]

    def command(self, row: ScaleRow, seed: int) -> Run:
        """Return the run of a row and seed, with the arguments of `tpt train`."""
        arguments = (
            f"--config={row.preset}",
            f"--data={self.store}",
            "--threads=1",
            *self.scale.options(row, seed),
        )
        return Run(f"{row.name}, seed {seed}", self.run_folder(row, seed), arguments)


def reproduce(work: Reproduction, console: Console | None = None) -> Accuracies:
    """Do what is left of a reproduction; print the scores, and whether they lie in the band."""
    console = console or Console(highlight=False)
    if work.data is None and work.scale.order is None:
        raise SettingsError(
            f"the scale {work.scale.name} needs the published questions: prepare them with "
            "`tpt data prepare` and name the store with --data DIR"
        )
    # Runs may have been trained on GPUs before.
    is_begun = (work.out / SCALE).is_file()
    refuse_other_content(work.out, "the reproduction", is_begun=is_begun, own=[RUNS])
    _refuse_other_settings(work)
    with _stage(work, "questions", console):
        store = _questions(work)
        counts = ", ".join(f"{name} {len(split):,}" for name, split in store.items())
        console.print(Text(f"{store.path}: {counts}"), soft_wrap=True)
    with _stage(work, "training", console):
        _train(work, console)
    with _stage(work, "scores", console):
        results = {(row.name, seed): _score(work, row, seed) for row, seed in work.runs()}
    with _stage(work, "analyses", console):
        notes = [note for row in work.scale.rows for note in _interpret(work, row)]
        console.print(*notes or ["all done"], sep="\n", markup=False)
    accuracies = _accuracies(work, results)
    write_json(work.out / REPRODUCTION, _described(work, accuracies, notes))
    # The first is compared with each of the others.
    rows = sorted(work.scale.rows, key=lambda row: row.name != COMPARED)
    ordered = [(row, seed) for row in rows for seed in work.scale.seeds]
    with _stage(work, "report", console):
        folders = [work.out / name for name in (RUNS, ANALYSES_FOLDER)]
        write_report(
            [*(work.results(*run) for run in ordered), *filter(Path.is_dir, folders)],
            work.out / REPORT,
        )
    heading(console, "results")
    Comparison(*(results[row.name, seed] for row, seed in ordered)).render(console)
    heading(console, "band")
    for line in _comparison(work, accuracies):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"The report is {work.out / REPORT}"), soft_wrap=True)
    return accuracies


def _refuse_other_settings(work: Reproduction) -> None:
    """Raise if the folder was begun with another scale, other settings or other data."""
    file, begun = work.out / SCALE, work.scale.to_json()
    begun["data_sha256"] = None
    if work.data is not None:
        begun["data_sha256"] = {name: one.digest for name, one in open_store(work.data).items()}
    if not file.exists():
        write_json(file, begun)
        return
    recorded = _read_object(file)
    if recorded.get("name") != work.scale.name:
        raise FolderError(
            f"{work.out} has a reproduction at the scale {recorded.get('name')}, not "
            f"{work.scale.name}; choose another --out"
        )
    others = [name for name, value in begun.items() if recorded.get(name) != value]
    if others:
        raise FolderError(
            f"{work.out} has a reproduction with another {' and '.join(others)}; repeat the "
            "command that began it, or choose another --out"
        )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise FolderError(f"{file} is damaged; choose another --out") from error


def _questions(work: Reproduction) -> Store:
    if work.data is not None:
        return open_store(work.data)
    assert work.scale.order is not None  # noqa: S101, for the type checker
    return generated(work.scale.order, work.store)


def _train(work: Reproduction, console: Console) -> None:
    """Train the runs that have no scores yet, one on each core, or one after the other on a GPU."""
    missing = [key for key in work.runs() if not work.results(*key).is_file()]
    runs = [work.command(*key) for key in missing]
    console.print(f"{len(runs)} of {len(work.runs())} runs to train or to complete")
    if runs:
        train_side_by_side(runs, console, runs_at_once())


def runs_at_once() -> int:
    """Return the number of runs to train at a time."""
    return n_cores() if choose_device("auto").type == "cpu" else 1


def _score(work: Reproduction, row: ScaleRow, seed: int) -> Results:
    """Return the scores of a run; those in the file, if they are of its model."""
    run, file = work.run_folder(row, seed), work.results(row, seed)
    if file.is_file():
        found = Results.read(file)
        if found.model.get("sha256") == model_hash(load(run)):
            return found
    store = open_store(work.store)
    tests = tuple(split for split in store.task.test_splits if split in store)
    choice = Choice(modules=work.scale.modules, splits=tests)
    return evaluate(run, store, file, choice, Work(overwrite=True), show=progress)


def _interpret(work: Reproduction, row: ScaleRow) -> Iterator[str]:
    """Do the analyses of a row that are missing; yield why an analysis is not possible."""
    for name in row.analyses:
        folder = work.out / ANALYSES_FOLDER / row.name / name
        if any(folder.glob("*.json")):
            continue
        common: dict[str, Any] = {
            "model": work.run_folder(row, work.scale.seeds[0]),
            "count": work.scale.analysed,
        }
        request = (
            StoreRequest(**common, data=work.store, module=work.scale.analysed_module)
            if ANALYSES[name].needs_store
            else AnalysisRequest(**common)
        )
        try:
            with showing(progress):
                interpret(name, request, ANALYSES[name].options(), folder)
        except UserError as error:
            yield f"{row.name}, {name}: not possible: {error}"


def _accuracies(
    work: Reproduction, results: Mapping[tuple[str, int], Results]
) -> dict[str, dict[str, SplitAccuracy]]:
    found = {}
    for row in work.scale.rows:
        seeds = [results[row.name, seed] for seed in work.scale.seeds]
        found[row.name] = {split: SplitAccuracy.of(seeds, split) for split in seeds[0].splits}
    return found


def _described(work: Reproduction, accuracies: Accuracies, notes: list[str]) -> dict[str, Any]:
    return {
        "scale": work.scale.name,
        "generated": work.data is None,
        "rows": {
            row: {split: {**asdict(one), "mean": one.mean} for split, one in splits.items()}
            for row, splits in accuracies.items()
        },
        "notes": notes,
        "comparison": _comparison(work, accuracies),
    }


def _comparison(work: Reproduction, accuracies: Accuracies) -> list[str]:
    name = work.scale.name
    return compare(name, read_band(name), accuracies, generated=work.data is None)


@contextmanager
def _stage(work: Reproduction, name: str, console: Console) -> Iterator[None]:
    """Announce a stage and add its time to those in the folder, also if it is interrupted."""
    heading(console, name)
    start = _clocks()
    try:
        yield
    finally:
        if work.out.is_dir():
            file = work.out / TIMES
            times = _read_object(file) if file.is_file() else {}
            for clock, now in _clocks().items():
                stages = times.setdefault(clock, {})
                stages[name] = round(stages.get(name, 0.0) + now - start[clock], 1)
            write_json(file, times)


def _clocks() -> dict[str, float]:
    """Return the time, and the processor time of this process and of those that it has ended."""
    spent = os.times()
    processor = spent.user + spent.system + spent.children_user + spent.children_system
    return {"seconds": time.monotonic(), "processor_seconds": processor}
