"""The figure of a bench: the accuracy of each seed, by task, split and binding."""

from tp_transformer import figures
from tp_transformer.study.bench.table import BenchRow, BenchTable

_ROW = 0.14  # inches of a binding
_AROUND = 0.62  # inches of the title and the axis of a panel


def plot(table: BenchTable) -> "figures.Figure":
    """Plot a panel for each split of each task: a point for each seed, a line at the mean."""
    tasks = table.tasks
    heights = [_AROUND + _ROW * len(rows) for rows in tasks.values()]
    n_columns = max(len(rows[0].scores) for rows in tasks.values())
    with figures.blank(figures.PAGE, sum(heights)) as drawn:
        grid = drawn.add_gridspec(len(tasks), n_columns, height_ratios=heights)
        for number, (task, rows) in enumerate(tasks.items()):
            for place, score in enumerate(rows[0].scores):
                axes = drawn.add_subplot(grid[number, place])
                _plot_split(axes, rows, place, table.reference)
                axes.set_title(f"{task}\n{score.title}", parse_math=False)
        below = figures.caption(
            drawn,
            "Accuracy of each seed (points) and mean over seeds (lines), after "
            + ", ".join(f"{rows[0].samples:,} samples of {task}" for task, rows in tasks.items())
            + f"; dotted: the mean of {table.reference}. "
            f"{table.n_done} of {table.n_runs} runs are done.",
        )
        drawn.set_figheight(sum(heights) + below)
    return drawn


def _plot_split(axes: "figures.Axes", rows: list[BenchRow], place: int, reference: str) -> None:
    for height, row in enumerate(rows):
        score = row.scores[place]
        colour = figures.COLOURS[height % len(figures.COLOURS)]
        values = [100 * accuracy for accuracy in score.accuracies]
        axes.plot(values, [height] * len(values), "o", color=colour, markersize=2.5, alpha=0.7)
        mean = 100 * score.mean
        axes.plot([mean, mean], [height - 0.35, height + 0.35], color=colour, linewidth=1.2)
        if row.variant == reference:
            axes.axvline(mean, color="#808080", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), ["" if place else row.variant for row in rows])
    axes.set_xlabel("correct, %")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
