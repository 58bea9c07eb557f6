"""The table of a bench: scores over seeds, paired tests, samples to 90%, parameters, costs.

Two tests answer two questions. Over seeds (Student's t-test of the differences between runs of the
same seed, hence the same samples): would the recipe differ with other seeds? Over questions
(sign flips of the differences summed over seeds): would these trained models differ on other
questions? Each is Holm-adjusted over all bindings, test splits and tasks of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tp_transformer.errors import ResultsError
from tp_transformer.runtime.provenance import versions
from tp_transformer.runtime.run_folder import METRICS
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval, holm, paired_t, sign_flip_test
from tp_transformer.show.report.inputs import BENCH_FORMAT
from tp_transformer.study.bench.cost import StepSeconds, relative_cost
from tp_transformer.study.bench.plan import BenchPlan, BenchRun
from tp_transformer.training.record import VALIDATION, read_records

LEARNED = 0.9  # the accuracy of "samples to 90%"
HELD_OUT = "held-out"  # questions of the training split that are not trained on


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of one run."""

    results: Results
    held_out: float  # accuracy at the end
    samples_to_learn: int | None  # until the held-out accuracy was 90%; None if it never was

    @classmethod
    def of(cls, run: BenchRun) -> "RunScores":
        """Read the scores and the learning curve of a run that is done."""
        records, _ = read_records(run.folder / METRICS)
        curve = [(one["step"], one["exact_match"]) for one in records if one["kind"] == VALIDATION]
        if not curve:
            raise ResultsError(f"{run.folder} has no validation")
        batch_size = run.config.data.batch_size
        learned = (step * batch_size for step, accuracy in curve if accuracy >= LEARNED)
        return cls(
            results=Results.read(run.results),
            held_out=curve[-1][1],
            samples_to_learn=next(learned, None),
        )

    def accuracy(self, split: str) -> float:
        """Return the accuracy on a split, averaged over modules."""
        return self.held_out if split == HELD_OUT else self.results.splits[split].average[0]


@dataclass(frozen=True, kw_only=True)
class BenchTest:
    """The comparison of a variant with the reference on a split, over the seeds that both have."""

    difference: float  # of the mean accuracies
    interval: Interval | None  # over seeds
    p_seeds: float | None  # None if there is no test: one seed, or equal differences
    p_seeds_holm: float | None
    p_questions: float
    p_questions_holm: float


@dataclass(frozen=True, kw_only=True)
class BenchScore:
    """The accuracy of a variant on a split, over seeds."""

    split: str
    title: str
    accuracies: tuple[float, ...]  # in the order of the seeds of the row
    test: BenchTest | None = None  # none for the reference, and for held-out questions

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for one seed."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A variant on a task."""

    task: str
    variant: str
    n_parameters: int
    seeds: tuple[int, ...]  # that are done
    samples: int  # of a run
    scores: tuple[BenchScore, ...]
    samples_to_learn: tuple[int | None, ...]  # of each seed
    cost: float | None  # of a step, relative to `none`; None if not measured


@dataclass(frozen=True, kw_only=True)
class BenchTable:
    """All rows, by task and in the order of the variants; without runs there is no row."""

    reference: str
    n_done: int
    n_runs: int
    rows: tuple[BenchRow, ...]
    made: dict[str, Any] = field(default_factory=versions)

    @property
    def tasks(self) -> dict[str, list[BenchRow]]:
        """The rows by task."""
        found: dict[str, list[BenchRow]] = {}
        for row in self.rows:
            found.setdefault(row.task, []).append(row)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the values to write as JSON."""
        values = asdict(self)
        for row, own in zip(self.rows, values["rows"], strict=True):
            for score, of_score in zip(row.scores, own["scores"], strict=True):
                of_score |= {"mean": score.mean, "spread": score.spread}
        return {"format": BENCH_FORMAT, "version": 2, **values}


def tabulate(plan: BenchPlan, costs: Mapping[str, StepSeconds]) -> BenchTable:
    """Return the table of the runs that are done."""
    planned = plan.runs()
    done = {(run.task, run.variant, run.seed): RunScores.of(run) for run in planned if run.is_done}
    rows: list[BenchRow] = []
    for task in plan.tasks:
        runs = {
            variant: {s: done[task, variant, s] for s in plan.seeds if (task, variant, s) in done}
            for variant in plan.variants
        }
        steps, batch_size = _budget(plan, task)
        rows += [
            BenchRow(
                task=task,
                variant=variant,
                n_parameters=next(iter(own.values())).results.model["n_parameters"],
                seeds=tuple(own),
                samples=steps * batch_size,
                scores=_scores(own, runs[str(plan.reference)], variant != plan.reference),
                samples_to_learn=tuple(one.samples_to_learn for one in own.values()),
                cost=relative_cost(costs[task], variant, "none"),
            )
            for variant, own in runs.items()
            if own
        ]
    return BenchTable(
        reference=str(plan.reference),
        n_done=len(done),
        n_runs=len(planned),
        rows=tuple(_adjusted(rows)),
    )


def _budget(plan: BenchPlan, task: str) -> tuple[int, int]:
    config = plan.config(task, "none", 0)
    assert config.training.steps is not None  # noqa: S101, a plan always sets it
    return config.training.steps, config.data.batch_size


def _scores(
    own: Mapping[int, RunScores], reference: Mapping[int, RunScores], is_tested: bool
) -> tuple[BenchScore, ...]:
    task = next(iter(own.values())).results.task
    titles = {HELD_OUT: "Held out", **{split: task.title(split) for split in task.test_splits}}
    both = [seed for seed in own if seed in reference]
    found = []
    for split, title in titles.items():
        test = None
        if is_tested and both and split != HELD_OUT:
            test = compare(split, [own[s] for s in both], [reference[s] for s in both])
        accuracies = tuple(one.accuracy(split) for one in own.values())
        found.append(BenchScore(split=split, title=title, accuracies=accuracies, test=test))
    return tuple(found)


def compare(split: str, first: Sequence[RunScores], second: Sequence[RunScores]) -> BenchTest:
    """Compare two variants on a split; their runs are paired by seed, in order."""
    ours, theirs = ([one.accuracy(split) for one in group] for group in (first, second))
    interval, p = paired_t(ours, theirs) or (None, None)
    p_questions = sign_flip_test(_question_differences(split, first, second))
    return BenchTest(
        difference=fmean(ours) - fmean(theirs),
        interval=interval,
        p_seeds=p,
        p_seeds_holm=p,
        p_questions=p_questions,
        p_questions_holm=p_questions,
    )


def _question_differences(
    split: str, first: Sequence[RunScores], second: Sequence[RunScores]
) -> list[Any]:
    """Return by how many runs more each question is answered correctly, for each module."""
    found = []
    for module, score in first[0].results.splits[split].modules.items():
        total = np.zeros(score.n, np.int64)
        for sign, group in ((1, first), (-1, second)):
            for one in group:
                own = one.results.splits[split].modules[module]
                if own.sha256 != score.sha256:
                    raise ResultsError(f"the runs have other questions of {module}")
                total += sign * own.verdicts
        found.append(total)
    return found


def _adjusted(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Adjust the p-values of all tests together; those over seeds and over questions apart."""
    tests = [score.test for row in rows for score in row.scores if score.test is not None]
    of_seeds = iter(holm([one.p_seeds for one in tests if one.p_seeds is not None]))
    of_questions = iter(holm([one.p_questions for one in tests]))

    def adjust(score: BenchScore) -> BenchScore:
        if score.test is None:
            return score
        p_seeds = None if score.test.p_seeds is None else next(of_seeds)
        test = replace(score.test, p_seeds_holm=p_seeds, p_questions_holm=next(of_questions))
        return replace(score, test=test)

    return [replace(row, scores=tuple(map(adjust, row.scores))) for row in rows]
