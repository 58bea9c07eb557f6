"""Charts of accuracies on each module, of the error of runs at each validation, and of losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tp_transformer import figures
from tp_transformer.errors import FolderError
from tp_transformer.runtime.run_folder import METRICS
from tp_transformer.scoring.compare import coverage, module_names, named_apart, task_of
from tp_transformer.scoring.results import HIGH, ModuleScore, Results
from tp_transformer.scoring.statistics import wilson
from tp_transformer.training.record import MONITOR, VALIDATION, Record, read_records

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = {MONITOR: "-", VALIDATION: ":"}
_HALF_WIDTH = 45  # characters of the legend in half the width of the figure


def plot(*results: Results) -> "dict[str, Figure]":
    """Plot the accuracy of results on each module; return a bar chart for each test split."""
    apart = named_apart(results)
    return {
        split: plot_split(apart, split, module_names(apart, split))
        for split in task_of(apart).test_splits
        if any(split in each.splits for each in apart)
    }


def save_bars(results: Sequence[Results], folder: str | Path) -> list[Path]:
    """Save a chart for each test split; return the files."""
    return [
        file
        for split, chart in plot(*results).items()
        for file in figures.save(chart, Path(folder), f"accuracy-{split}")
    ]


def plot_split(results: Sequence[Results], split: str, modules: Sequence[str]) -> "Figure":
    """Plot a bar for each module, in this order, and each result that has the split."""
    task = task_of(results)
    results = [each for each in results if split in each.splits]
    height = 1.0 + len(modules) * max(0.13, 0.035 * len(results))
    with figures.figure(figures.PAGE, height) as (chart, axes):
        first_bars = [_draw_bars(axes, results, n, split, modules) for n in range(len(results))]
        axes.axvline(100 * HIGH, color="#808080", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(modules)), modules)
        axes.set_ylim(len(modules) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("correct answers, % (95% Wilson intervals; dotted: 95%)")
        chart.suptitle(f"{task.title(split)}: accuracy on each module")
        labels = []
        for each in results:
            score = each.splits[split]
            covered = coverage(task, split, len(score.modules))
            over = f" over {covered}" if covered else ""
            labels.append(f"{each.name} ({100 * score.average[0]:.2f}% on average{over})")
        # Passed explicitly, because matplotlib ignores labels that start with an underscore.
        _add_legend(chart, labels, first_bars, is_above=False)
    return chart


def _draw_bars(
    axes: "Axes", results: Sequence[Results], number: int, split: str, modules: Sequence[str]
) -> "Artist":
    """Draw the bars of one of the results; return the first one, for the legend."""
    scores = results[number].splits[split].modules
    thickness = 0.8 / len(results)
    offset = (number - (len(results) - 1) / 2) * thickness
    heights = [height for height, name in enumerate(modules) if name in scores]
    drawn = [scores[modules[height]] for height in heights]
    # Rounding may put a limit slightly beyond the accuracy.
    below = [max(0.0, 100 * (score.accuracy - score.interval[0])) for score in drawn]
    above = [max(0.0, 100 * (score.interval[1] - score.accuracy)) for score in drawn]
    bars = axes.barh(
        [height + offset for height in heights],
        [100 * score.accuracy for score in drawn],
        thickness,
        xerr=[below, above],
        color=figures.COLOURS[number % len(figures.COLOURS)],
        error_kw={"elinewidth": 0.6, "ecolor": "#404040"},
    )
    for bar, height, score in zip(bars, heights, drawn, strict=True):
        figures.add_tooltip(bar, _tooltip(modules[height], score))
    return bars[0]


def _tooltip(name: str, score: ModuleScore) -> str:
    low, high = score.interval
    return f"{name}: {score.right:,} of {score.n:,} correct; {low:.1%} to {high:.1%}"


def _add_legend(
    chart: "Figure", labels: Sequence[str], handles: Sequence["Artist"], *, is_above: bool
) -> None:
    where: Literal["outside upper center", "outside lower center"]
    where = "outside upper center" if is_above else "outside lower center"
    n_columns = 2 if max(map(len, labels)) <= _HALF_WIDTH else 1
    legend = chart.legend(handles, labels, loc=where, ncols=n_columns)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names may contain $


@dataclass(frozen=True)
class Curve:
    """The error of a run on the same questions at each validation."""

    name: str
    kind: str  # of the records
    questions: str  # where they are from, such as a split
    n: int  # number of questions
    steps: tuple[int, ...]
    errors: tuple[float, ...]  # shares of wrong answers

    @property
    def rises(self) -> list[int]:
        """The steps at which the error was not lower than at the previous validation."""
        pairs = zip(self.steps[1:], pairwise(self.errors), strict=True)
        return [step for step, (before, now) in pairs if now >= before]

    def line(self) -> str:
        """Describe the first and last error, and whether the curve is strictly decreasing."""
        ends = f"{self.errors[0]:.2%} at step {self.steps[0]:,}"
        if len(self.steps) > 1:
            ends += f", {self.errors[-1]:.2%} at step {self.steps[-1]:,}"
        described = f"{self.name}: error on {self.n:,} questions, {self.questions}: {ends}"
        n_pairs = len(self.steps) - 1
        if not n_pairs:
            return described
        if not self.rises:
            return f"{described}; strictly decreasing over {n_pairs + 1} validations"
        first = f"the first time at step {self.rises[0]:,}"
        return f"{described}; not lower at {len(self.rises)} of {n_pairs} validations, {first}"


def read_curves(run: str | Path) -> list[Curve]:
    """Return the curves of a run: of its monitor, if any, and of its validation."""
    file = Path(run) / METRICS
    if not file.is_file():
        raise FolderError(f"{run} is not a run: it has no {METRICS}")
    records, _ = read_records(file)
    curves = curves_of(records, Path(run).absolute().name)
    if not curves:
        raise FolderError(f"{run} has no validation yet")
    return curves


def curves_of(records: Sequence[Record], name: str) -> list[Curve]:
    """Return the curves in the records of a run; none before its first validation."""
    curves = []
    for kind in _LINES:
        validations = [record for record in records if record["kind"] == kind]
        if validations:
            steps = tuple(record["step"] for record in validations)
            errors = tuple(1 - record["exact_match"] for record in validations)
            last = validations[-1]
            source = last["split"] if kind == MONITOR else "held out of training"
            curves.append(Curve(name, kind, source, last["n"], steps, errors))
    return curves


def plot_curves(curves: Sequence[Curve], runs: Sequence[str] = ()) -> "Figure":
    """Plot the curves of one or several runs, whose colours may follow the order of `runs`."""
    names = list(dict.fromkeys([*runs, *(curve.name for curve in curves)]))
    with figures.figure(figures.PAGE, 2.6) as (chart, axes):
        lines = []
        for curve in curves:
            colour = figures.COLOURS[names.index(curve.name) % len(figures.COLOURS)]
            errors = [100 * error for error in curve.errors]
            lines += axes.plot(
                curve.steps, errors, _LINES[curve.kind], color=colour, marker=".", markersize=3
            )
            right = [round((1 - error) * curve.n) for error in curve.errors]
            intervals = [wilson(count, curve.n) for count in right]
            low = [100 * (1 - limit) for _, limit in intervals]
            high = [100 * (1 - limit) for limit, _ in intervals]
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
        _label_steps(axes, "wrong answers, %")
        labels = [f"{curve.name}, {curve.questions}" for curve in curves]
        _add_legend(chart, labels, lines, is_above=True)
        figures.caption(
            chart,
            "Error on the same questions at each validation, with 95% Wilson intervals. "
            "Test questions are only monitored, not used to select a checkpoint.",
        )
    return chart


def save_curves(curves: Sequence[Curve], folder: str | Path) -> list[Path]:
    """Save the curves of one or several runs in one figure; return the files."""
    return figures.save(plot_curves(curves), Path(folder), "error-curve")


def plot_losses(losses: Mapping[str, Sequence[tuple[int, float]]]) -> "Figure":
    """Plot the loss on training batches at each step of some runs."""
    with figures.figure(figures.PAGE, 2.2) as (chart, axes):
        lines = []
        for number, points in enumerate(losses.values()):
            colour = figures.COLOURS[number % len(figures.COLOURS)]
            marker = "." if len(points) == 1 else None
            steps, values = zip(*points, strict=True) if points else ((), ())
            lines += axes.plot(steps, values, color=colour, marker=marker)
        _label_steps(axes, "loss per token")
        _add_legend(chart, list(losses), lines, is_above=True)
        figures.caption(chart, "Loss on training batches.")
    return chart


def _label_steps(axes: "Axes", quantity: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training steps")
    axes.set_ylabel(quantity)
