"""The reproduction of Table 1 at some scale: data, runs, scores, analyses, the report.

DIR/scale.json                 what the folder was begun with; other settings are an error
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

bands.json has what was measured at each scale on a named machine, by tools/update_bands.py. The
band of a row and split reaches from the lowest lower bound to the highest upper bound of the 95%
intervals of its seeds, in one or several reproductions: another processor or version rounds
differently, and training with the same seed then differs.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from tp_transformer.data.store import Store, open_store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.interpret.run import interpret
from tp_transformer.report.comparison import Comparison
from tp_transformer.report.page import write_report
from tp_transformer.report.terminal import heading
from tp_transformer.runtime.files import refuse_other_content, write_json
from tp_transformer.runtime.processes import n_cores
from tp_transformer.runtime.progress import progress, showing
from tp_transformer.runtime.ranks import choose_device
from tp_transformer.runtime.run_folder import seed_folder
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval
from tp_transformer.study.engine import (
    StudyRun,
    begin,
    generated_store,
    read_json,
    train_side_by_side,
)
from tp_transformer.study.scales import Scale, ScaleRow

SCALE, REPRODUCTION, TIMES = "scale.json", "reproduction.json", "times.json"
REPORT = "report.html"
QUESTIONS, RUNS, RESULTS, ANALYSES_FOLDER = "questions", "runs", "results", "analyses"
COMPARED = "tp-transformer"  # the row that is compared with the others
BANDS = Path(__file__).with_name("bands.json")

Times = dict[str, dict[str, float]]  # of each clock, the seconds of each stage


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A reproduction at some scale in a folder."""

    scale: Scale
    out: Path
    data: Path | None = None  # the store to use in place of generated questions

    @property
    def store(self) -> Path:
        """The folder of the questions."""
        return self.out / QUESTIONS if self.data is None else self.data

    def run(self, row: ScaleRow, seed: int) -> StudyRun:
        """Return the run of a row and seed."""
        return StudyRun(
            name=f"{row.name}, seed {seed}",
            preset=row.preset,
            config=self.scale.config(row, seed),
            data=self.store,
            folder=seed_folder(self.out / RUNS / row.name, seed),
            results=self.out / RESULTS / f"{row.name}-seed-{seed}.json",
        )

    def runs(self) -> list[StudyRun]:
        """Return all runs; those of the first seed come first."""
        return [self.run(row, seed) for seed in self.scale.seeds for row in self.scale.rows]


@dataclass(frozen=True, kw_only=True)
class SplitAccuracy:
    """The accuracies of the seeds of a row on a split, each an average over modules."""

    accuracies: tuple[float, ...]  # of each seed
    band: Interval  # from the lowest to the highest bound of their 95% intervals
    mean: float = field(init=False)  # over seeds

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", fmean(self.accuracies))

    @classmethod
    def of(cls, results: Sequence[Results], split: str) -> "SplitAccuracy":
        """Return the accuracies of the results of all seeds."""
        averages = [each.splits[split].average for each in results]
        return cls(
            accuracies=tuple(accuracy for accuracy, _ in averages),
            band=(min(low for _, (low, _) in averages), max(high for _, (_, high) in averages)),
        )


Accuracies = Mapping[str, Mapping[str, SplitAccuracy]]  # by row, then by split


@dataclass(frozen=True, kw_only=True)
class Band:
    """What was measured at a scale."""

    date: str
    machine: Mapping[str, Any]  # processor, cores, versions
    seconds: Mapping[str, float]  # of each stage, by the clock
    processor_seconds: Mapping[str, float]  # which the load of the machine changes little
    rows: Mapping[str, Mapping[str, Interval]]  # lower and upper bound by row and split

    @property
    def source(self) -> str:
        """Where and when it was measured, in one line."""
        machine = self.machine
        return f"{self.date} on {machine['processor']} ({machine['cores']} cores)"


def read_band(scale: str) -> Band | None:
    """Return the band of a scale; None if nobody has measured it."""
    return read_json(BANDS, dict[str, Band]).get(scale)


def compare(scale: str, band: Band | None, accuracies: Accuracies, *, generated: bool) -> list[str]:
    """Say for each row and split whether the mean over seeds lies inside the band."""
    if not generated:
        return ["No band exists for data that were given: bands are for the generated questions."]
    if band is None:
        return [f"No band exists for the scale {scale}: nobody has recorded a measurement of it."]
    lines = []
    for row, splits in accuracies.items():
        for split, accuracy in splits.items():
            bounds = band.rows.get(row, {}).get(split)
            if bounds is None:
                lines.append(f"{row}, {split}: {accuracy.mean:.1%}; no band exists for this row")
                continue
            low, high = bounds
            where = "inside" if low <= accuracy.mean <= high else "OUTSIDE"
            lines.append(f"{row}, {split}: {accuracy.mean:.1%}, {where} {low:.1%} to {high:.1%}")
    return [*lines, f"The band was measured {band.source}."]


def reproduce(study: Reproduction, console: Console | None = None) -> Accuracies:
    """Do what is left of a reproduction; print the scores, and whether they lie in the band."""
    console, scale = console or Console(highlight=False), study.scale
    if study.data is None and scale.order is None:
        raise SettingsError(
            f"the scale {scale.name} needs the published questions: prepare them with "
            "`tpt data prepare` and name the store with --data DIR"
        )
    # Runs may have been trained on GPUs before.
    is_begun = (study.out / SCALE).is_file()
    refuse_other_content(study.out, "the reproduction", is_begun=is_begun, own=[RUNS])
    hashes = None
    if study.data is not None:
        hashes = {name: split.digest for name, split in open_store(study.data).items()}
    begin(study.out / SCALE, {**msgspec.to_builtins(scale), "data_sha256": hashes})
    with _stage(study, "questions", console):
        store = (
            open_store(study.store)
            if scale.order is None or study.data is not None
            else generated_store(scale.order, study.store)
        )
        counts = ", ".join(f"{name} {len(split):,}" for name, split in store.items())
        console.print(Text(f"{store.path}: {counts}"), soft_wrap=True)
    with _stage(study, "training", console):
        pending = [run for run in study.runs() if not run.is_scored]
        console.print(f"{len(pending)} of {len(study.runs())} runs to train or to complete")
        train_side_by_side(pending, console, runs_at_once())
    with _stage(study, "scores", console):
        results = _score(study, store)
    with _stage(study, "analyses", console):
        notes = [note for row in scale.rows for note in _interpret(study, row)]
        console.print(*notes or ["all done"], sep="\n", markup=False)
    accuracies = {
        row: {split: SplitAccuracy.of(seeds, split) for split in seeds[0].splits}
        for row, seeds in results.items()
    }
    generated = study.data is None
    comparison = compare(scale.name, read_band(scale.name), accuracies, generated=generated)
    described = {"scale": scale.name, "generated": generated, "rows": accuracies}
    described |= {"notes": notes, "comparison": comparison}
    write_json(study.out / REPRODUCTION, msgspec.to_builtins(described))
    # The first is compared with each of the others.
    ordered = sorted(scale.rows, key=lambda row: row.name != COMPARED)
    with _stage(study, "report", console):
        files = [study.run(row, seed).results for row in ordered for seed in scale.seeds]
        folders = [study.out / name for name in (RUNS, ANALYSES_FOLDER)]
        write_report([*files, *filter(Path.is_dir, folders)], study.out / REPORT)
    heading(console, "results")
    Comparison(*(each for row in ordered for each in results[row.name])).render(console)
    heading(console, "band")
    for line in (*comparison, f"The report is {study.out / REPORT}"):
        console.print(Text(line), soft_wrap=True)
    return accuracies


def runs_at_once() -> int:
    """Return the number of runs to train at a time: one on each core, or one on a GPU."""
    return n_cores() if choose_device("auto").type == "cpu" else 1


def _score(study: Reproduction, store: Store) -> dict[str, list[Results]]:
    """Return the scores of each row by seed."""
    tests = tuple(split for split in store.task.test_splits if split in store)
    choice = QuestionChoice(modules=study.scale.modules, splits=tests)
    results: dict[str, list[Results]] = {row.name: [] for row in study.scale.rows}
    for seed in study.scale.seeds:
        for row in study.scale.rows:
            results[row.name].append(
                study.run(row, seed).score(choice, EvaluationOptions(overwrite=True))
            )
    return results


def _interpret(study: Reproduction, row: ScaleRow) -> Iterator[str]:
    """Do the analyses of a row that are missing; yield why an analysis is not possible."""
    for name in row.analyses:
        folder = study.out / ANALYSES_FOLDER / row.name / name
        if any(folder.glob("*.json")):
            continue
        common: dict[str, Any] = {
            "model": study.run(row, study.scale.seeds[0]).folder,
            "count": study.scale.analysed,
        }
        request = (
            StoreRequest(**common, data=study.store, module=study.scale.analysed_module)
            if ANALYSES[name].needs_store
            else AnalysisRequest(**common)
        )
        try:
            with showing(progress):
                interpret(name, request, ANALYSES[name].options(), folder)
        except UserError as error:
            yield f"{row.name}, {name}: not possible: {error}"


@contextmanager
def _stage(study: Reproduction, name: str, console: Console) -> Iterator[None]:
    """Announce a stage and add its time to those in the folder, also if it is interrupted."""
    heading(console, name)
    start = _clocks()
    try:
        yield
    finally:
        if study.out.is_dir():
            file = study.out / TIMES
            times = read_json(file, Times) if file.is_file() else {}
            for clock, now in _clocks().items():
                stages = times.setdefault(clock, {})
                stages[name] = round(stages.get(name, 0.0) + now - start[clock], 1)
            write_json(file, times)


def _clocks() -> dict[str, float]:
    """Return the time, and the processor time of this process and of those that it has ended."""
    spent = os.times()
    processor = spent.user + spent.system + spent.children_user + spent.children_system
    return {"seconds": time.monotonic(), "processor_seconds": processor}
