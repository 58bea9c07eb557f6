"""The table of a bench, for a terminal, as JSON, Markdown and LaTeX, and its figure.

Two tests answer two questions. Over seeds (Student's t-test of the differences between runs of the
same seed, hence the same samples): would the recipe differ with other seeds? Over questions
(sign flips of the differences summed over seeds): would these trained models differ on other
questions? Each is Holm-adjusted over all bindings, test splits and tasks of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tp_transformer import figures
from tp_transformer.errors import ResultsError
from tp_transformer.report.inputs import BENCH_FORMAT
from tp_transformer.runtime.files import atomic_write, write_json
from tp_transformer.runtime.provenance import versions
from tp_transformer.runtime.run_folder import METRICS
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval, holm, paired_t, sign_flip_test
from tp_transformer.study.engine import StudyRun
from tp_transformer.table import Table, latex_escaped, latex_note, text_of
from tp_transformer.training.record import VALIDATION, read_records

NAME = "bench"  # of the files
LEARNED = 0.9  # the accuracy of "samples to 90%"
HELD_OUT = "held-out"  # questions of the training split that are not trained on
ABSENT = "-"
_N_FIXED = 5  # columns before those of test splits
_ROW = 0.14  # inches of a binding in the figure
_AROUND = 0.62  # inches of the title and the axis of a panel

RunKey = tuple[str, str, int]  # task, variant, seed
StepSeconds = dict[str, list[float]]  # of each variant, the seconds of a step in each round


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of one run."""

    results: Results
    held_out: float  # accuracy at the end
    samples_to_learn: int | None  # until the held-out accuracy was 90%; None if it never was

    @classmethod
    def of(cls, run: StudyRun) -> "RunScores":
        """Read the scores and the learning curve of a run that is done."""
        records, _ = read_records(run.folder / METRICS)
        validations = [record for record in records if record["kind"] == VALIDATION]
        if not validations:
            raise ResultsError(f"{run.folder} has no validation")
        learned = (each["step"] for each in validations if each["exact_match"] >= LEARNED)
        step = next(learned, None)
        return cls(
            results=Results.read(run.results),
            held_out=validations[-1]["exact_match"],
            samples_to_learn=None if step is None else step * run.config.data.batch_size,
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
    mean: float = field(init=False)  # over seeds
    spread: float | None = field(init=False)  # the standard deviation; None for one seed

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", fmean(self.accuracies))
        spread = stdev(self.accuracies) if len(self.accuracies) > 1 else None
        object.__setattr__(self, "spread", spread)


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
        return {
            task: [row for row in self.rows if row.task == task]
            for task in dict.fromkeys(row.task for row in self.rows)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the values to write as JSON, and the tables with their texts, for the report."""
        texts = [
            {"title": table.title, "columns": table.heads, "rows": table.rows}
            for table in tables(self)
        ]
        values = {"format": BENCH_FORMAT, "version": 2, **msgspec.to_builtins(self)}
        return {**values, "tables": texts, "notes": notes(self)}


def tabulate(
    runs: Mapping[RunKey, StudyRun], reference: str, costs: Mapping[str, StepSeconds]
) -> BenchTable:
    """Return the table of the runs that are done."""
    done = {key: RunScores.of(run) for key, run in runs.items() if run.is_scored}
    by_row: dict[tuple[str, str], dict[int, RunScores]] = {}
    for task in dict.fromkeys(task for task, _, _ in runs):
        for variant in dict.fromkeys(variant for _, variant, _ in runs):
            by_row[task, variant] = {
                seed: scores for (*row, seed), scores in done.items() if row == [task, variant]
            }
    rows = []
    for (task, variant), scores in by_row.items():
        if scores:
            compared = None if variant == reference else by_row[task, reference]
            config = runs[task, variant, next(iter(scores))].config
            rows.append(
                BenchRow(
                    task=task,
                    variant=variant,
                    n_parameters=next(iter(scores.values())).results.model["n_parameters"],
                    seeds=tuple(scores),
                    samples=(config.training.steps or 0) * config.data.batch_size,
                    scores=_scores(scores, compared),
                    samples_to_learn=tuple(run.samples_to_learn for run in scores.values()),
                    cost=relative_cost(costs[task], variant, "none"),
                )
            )
    return BenchTable(
        reference=reference, n_done=len(done), n_runs=len(runs), rows=tuple(_adjusted(rows))
    )


def relative_cost(seconds: StepSeconds, variant: str, reference: str) -> float | None:
    """Return the median over rounds of the cost of a step, relative to that of the reference."""
    if variant not in seconds or reference not in seconds:
        return None
    pairs = zip(seconds[variant], seconds[reference], strict=True)
    return median(step / reference_step for step, reference_step in pairs)


def _scores(
    scores: Mapping[int, RunScores], reference: Mapping[int, RunScores] | None
) -> tuple[BenchScore, ...]:
    task = next(iter(scores.values())).results.task
    titles = {HELD_OUT: "Held out", **{split: task.title(split) for split in task.test_splits}}
    shared = [seed for seed in scores if seed in (reference or {})]
    columns = []
    for split, title in titles.items():
        test = None
        if reference is not None and shared and split != HELD_OUT:
            test = compare(split, [(scores[seed], reference[seed]) for seed in shared])
        accuracies = tuple(run.accuracy(split) for run in scores.values())
        columns.append(BenchScore(split=split, title=title, accuracies=accuracies, test=test))
    return tuple(columns)


def compare(split: str, pairs: Sequence[tuple[RunScores, RunScores]]) -> BenchTest:
    """Compare two variants on a split; their runs are paired by seed."""
    ours, theirs = ([run.accuracy(split) for run in runs] for runs in zip(*pairs, strict=True))
    interval, p = paired_t(ours, theirs) or (None, None)
    p_questions = sign_flip_test(_question_differences(split, pairs))
    return BenchTest(
        difference=fmean(ours) - fmean(theirs),
        interval=interval,
        p_seeds=p,
        p_seeds_holm=p,
        p_questions=p_questions,
        p_questions_holm=p_questions,
    )


def _question_differences(
    split: str, pairs: Sequence[tuple[RunScores, RunScores]]
) -> list[npt.NDArray[np.int64]]:
    """Return by how many runs more each question is answered correctly, for each module."""
    differences = []
    for module, score in pairs[0][0].results.splits[split].modules.items():
        total = np.zeros(score.n, np.int64)
        for pair in pairs:
            ours, theirs = (run.results.splits[split].modules[module] for run in pair)
            if not ours.sha256 == theirs.sha256 == score.sha256:
                raise ResultsError(f"the runs have other questions of {module}")
            total += ours.verdicts
            total -= theirs.verdicts
        differences.append(total)
    return differences


def _adjusted(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Adjust the p-values of all tests together; those over seeds and over questions apart."""
    tests = [score.test for row in rows for score in row.scores if score.test is not None]
    of_seeds = iter(holm([test.p_seeds for test in tests if test.p_seeds is not None]))
    of_questions = iter(holm([test.p_questions for test in tests]))

    def adjust(score: BenchScore) -> BenchScore:
        if score.test is None:
            return score
        p_seeds = None if score.test.p_seeds is None else next(of_seeds)
        test = replace(score.test, p_seeds_holm=p_seeds, p_questions_holm=next(of_questions))
        return replace(score, test=test)

    return [replace(row, scores=tuple(map(adjust, row.scores))) for row in rows]


def tables(bench: BenchTable) -> list[Table]:
    """Return the table of each task."""
    return [_task_table(bench.reference, task, rows) for task, rows in bench.tasks.items()]


def _task_table(reference: str, task: str, rows: Sequence[BenchRow]) -> Table:
    heads = ["Binding", "Parameters", "Cost", "Samples to 90%"]
    for score in rows[0].scores:
        heads.append(score.title)
        if score.split != HELD_OUT:
            heads.append(f"{score.title} minus {reference}")
    body = []
    for row in rows:
        cost = ABSENT if row.cost is None else f"{row.cost:.2f}"
        cells = [row.variant, f"{row.n_parameters:,}", cost, _samples(row.samples_to_learn)]
        for score in row.scores:
            spread = "" if score.spread is None else f" ± {100 * score.spread:.1f}"
            cells.append(f"{100 * score.mean:.1f}{spread}")
            if score.split != HELD_OUT:
                cells.append(ABSENT if score.test is None else _difference(score.test))
        body.append(cells)
    return Table(title=f"{task}, {rows[0].samples:,} samples", heads=heads, rows=body)


def _samples(samples: Sequence[int | None]) -> str:
    """Return the mean over the seeds that learned, and how many those are if not all."""
    reached = [count for count in samples if count is not None]
    if not reached:
        return ABSENT
    of_all = "" if len(reached) == len(samples) else f" ({len(reached)} of {len(samples)})"
    return f"{fmean(reached):,.0f}{of_all}"


def _difference(test: BenchTest) -> str:
    """Return a difference in points with its p-values over seeds and over questions."""
    seeds = ABSENT if test.p_seeds_holm is None else _p(test.p_seeds_holm)
    return f"{100 * test.difference:+.1f} (p {seeds}; {_p(test.p_questions_holm)})"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def notes(bench: BenchTable) -> list[str]:
    """Return how to read the table, and how much of it there is."""
    n_tests = sum(score.test is not None for row in bench.rows for score in row.scores)
    counts = sorted({len(row.seeds) for row in bench.rows})
    n_seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [
        f"{bench.n_done} of {bench.n_runs} runs are done.",
        "All bindings are trained on the same sequence of samples. Accuracies are in %: mean ± "
        f"standard deviation over {n_seeds} seeds, of the model at the end of the budget. Held "
        "out: questions of the training distribution that are not trained on.",
        f"Differences from {bench.reference} are in points. The first p is over seeds (paired "
        "t-test): would other seeds show a difference too? It has little power with few seeds. The "
        "second p is over questions (sign flips): would these trained models differ on other "
        f"questions too? Each is Holm-adjusted over the {n_tests} comparisons of the table.",
        "Samples to 90%: the first validation with 90% of the held-out questions correct, mean "
        "over the seeds that reach it. Cost: processor time of a training step relative to none, "
        "with one thread, median of interleaved rounds.",
    ]


def render(bench: BenchTable, console: Console) -> None:
    """Print the table; where a terminal is narrow, the columns of each test split apart."""
    for table in tables(bench):
        console.print(Rule(f"[bold]{table.title}[/]", align="left"))
        for columns in _column_groups(table, console.width):
            heads = [table.heads[column] for column in columns]
            rows = [[row[column] for column in columns] for row in table.rows]
            console.print(Table(heads=heads, rows=rows).terminal(wrapped=False))
            console.print()
    for line in notes(bench):
        console.print(Text(line, style="dim"))


def _column_groups(table: Table, width: int) -> list[list[int]]:
    """Return the columns of each table to print: all in one if there is room."""
    n_columns, lines = len(table.heads), [table.heads, *table.rows]
    columns = range(n_columns)
    needed = sum(1 + max(len(text_of(row[column])) for row in lines) for column in columns)
    if needed <= width:
        return [list(columns)]
    tests = range(_N_FIXED, n_columns, 2)  # an accuracy and a difference
    return [list(range(_N_FIXED)), *([0, column, column + 1] for column in tests)]


def markdown(bench: BenchTable) -> str:
    """Return the table as Markdown."""
    lines = []
    for table in tables(bench):
        lines += [f"## {table.title}", "", *table.markdown(), ""]
    return "\n".join([*lines, *(f"- {line}" for line in notes(bench))]) + "\n"


def latex(bench: BenchTable) -> str:
    """Return the table as LaTeX."""
    lines = [r"% needs \usepackage{booktabs}"]
    for table in tables(bench):
        title = rf"\par\noindent\textbf{{{latex_escaped(table.title)}}}\par"
        lines += [title, *table.latex()]
    return "\n".join([*lines, *map(latex_note, notes(bench))]) + "\n"


def save(bench: BenchTable, folder: Path) -> list[Path]:
    """Write the table as JSON, Markdown and LaTeX, and its figure; return the files.

    The figure is drawn first, so that nothing is written if that fails.
    """
    figure = plot(bench)
    files = [folder / f"{NAME}.{kind}" for kind in ("json", "md", "tex")]
    write_json(files[0], bench.to_json())
    for file, text in zip(files[1:], (markdown(bench), latex(bench)), strict=True):
        with atomic_write(file) as unfinished:
            unfinished.write_text(text, "utf-8")
    return [*files, *figures.save(figure, folder, NAME)]


def plot(bench: BenchTable) -> "figures.Figure":
    """Plot a panel for each split of each task: a point for each seed, a line at the mean."""
    tasks = bench.tasks
    heights = [_AROUND + _ROW * len(rows) for rows in tasks.values()]
    n_columns = max(len(rows[0].scores) for rows in tasks.values())
    with figures.blank(figures.PAGE, sum(heights)) as figure:
        grid = figure.add_gridspec(len(tasks), n_columns, height_ratios=heights)
        for number, (task, rows) in enumerate(tasks.items()):
            for column, score in enumerate(rows[0].scores):
                axes = figure.add_subplot(grid[number, column])
                _plot_split(axes, rows, column, bench.reference)
                axes.set_title(f"{task}\n{score.title}", parse_math=False)
        below = figures.caption(
            figure,
            "Accuracy of each seed (points) and mean over seeds (lines), after "
            + ", ".join(f"{rows[0].samples:,} samples of {task}" for task, rows in tasks.items())
            + f"; dotted: the mean of {bench.reference}. "
            f"{bench.n_done} of {bench.n_runs} runs are done.",
        )
        figure.set_figheight(sum(heights) + below)
    return figure


def _plot_split(axes: "figures.Axes", rows: list[BenchRow], column: int, reference: str) -> None:
    for height, row in enumerate(rows):
        score = row.scores[column]
        colour = figures.COLOURS[height % len(figures.COLOURS)]
        values = [100 * accuracy for accuracy in score.accuracies]
        axes.plot(values, [height] * len(values), "o", color=colour, markersize=2.5, alpha=0.7)
        mean = 100 * score.mean
        axes.plot([mean, mean], [height - 0.35, height + 0.35], color=colour, linewidth=1.2)
        if row.variant == reference:
            axes.axvline(mean, color="#808080", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), ["" if column else row.variant for row in rows])
    axes.set_xlabel("correct, %")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
