"""Bar charts of the accuracy on each module, as in the appendix of the paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer import figures
from tp_transformer.data.task import Task
from tp_transformer.scoring.compare import coverage, module_names, named_apart, task_of
from tp_transformer.scoring.results import HIGH, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HALF_LINE = 45  # characters of the legend in half the width of the figure


def plot(*results: Results) -> "dict[str, Figure]":
    """Plot the accuracy of results on each module; return a bar chart for each test split."""
    apart = named_apart(results)
    by_split = {
        split: [one for one in apart if split in one.splits] for split in task_of(apart).test_splits
    }
    return {split: _plot_split(own, split) for split, own in by_split.items() if own}


def save_bars(results: Sequence[Results], folder: str | Path) -> list[Path]:
    """Save a chart for each test split; return the files."""
    return [
        file
        for split, drawn in plot(*results).items()
        for file in figures.save(drawn, Path(folder), f"accuracy-{split}")
    ]


def _plot_split(results: Sequence[Results], split: str) -> "Figure":
    task, names = task_of(results), module_names(results, split)
    thickness = 0.8 / len(results)
    height = 1.0 + len(names) * max(0.13, 0.035 * len(results))
    with figures.figure(figures.PAGE, height) as (drawn, axes):
        first_bars = []
        for number, one in enumerate(results):
            scores = one.splits[split].modules
            there = [place for place, name in enumerate(names) if name in scores]
            own = [scores[names[place]] for place in there]
            accuracies = [100 * score.accuracy for score in own]
            # Rounding may put a limit slightly beyond the accuracy.
            reach = [
                [max(0.0, 100 * (score.accuracy - score.interval[0])) for score in own],
                [max(0.0, 100 * (score.interval[1] - score.accuracy)) for score in own],
            ]
            bars = axes.barh(
                [place + (number - (len(results) - 1) / 2) * thickness for place in there],
                accuracies,
                thickness,
                xerr=reach,
                color=figures.COLOURS[number % len(figures.COLOURS)],
                error_kw={"elinewidth": 0.6, "ecolor": "#404040"},
            )
            first_bars.append(bars[0])
        axes.axvline(100 * HIGH, color="#808080", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("correct answers, % (95% Wilson intervals; dotted: 95%)")
        drawn.suptitle(f"{task.title(split)}: accuracy on each module")
        labels = [_label(one, split, task) for one in results]
        # Passed explicitly, because matplotlib ignores labels that start with an underscore.
        ncols = 2 if max(map(len, labels)) <= _HALF_LINE else 1
        drawn.legend(first_bars, labels, loc="outside lower center", ncols=ncols)
    return drawn


def _label(results: Results, split: str, task: Task) -> str:
    """Return the name and average of a model for the legend, with dollar signs escaped."""
    score = results.splits[split]
    covered = coverage(task, split, len(score.modules))
    over = f" over {covered}" if covered else ""
    label = f"{results.name} ({100 * score.average[0]:.2f}% on average{over})"
    return label.replace("$", r"\$")
