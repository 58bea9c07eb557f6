"""The table of a bench for a terminal, as Markdown and LaTeX, and all its files."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tp_transformer import figures
from tp_transformer.runtime.files import atomic_write
from tp_transformer.study.bench.figure import plot
from tp_transformer.study.bench.table import HELD_OUT, BenchRow, BenchTable, BenchTest
from tp_transformer.table import Table, latex_escaped, latex_note, text_of

NAME = "bench"  # of the files
ABSENT = "-"
_N_FIXED = 5  # columns before those of test splits


def render(table: BenchTable, console: Console) -> None:
    """Print the table; where a terminal is narrow, the columns of each test split apart."""
    for shown in tables(table):
        console.print(Rule(f"[bold]{shown.title}[/]", align="left"))
        for columns in _column_groups(shown, console.width):
            heads = [shown.heads[place] for place in columns]
            rows = [[row[place] for place in columns] for row in shown.rows]
            console.print(Table(heads=heads, rows=rows).terminal(wrapped=False))
            console.print()
    for line in notes(table):
        console.print(Text(line, style="dim"))


def _column_groups(table: Table, width: int) -> list[list[int]]:
    """Return the columns of each table to print: all in one if there is room."""
    n_columns, lines = len(table.heads), [table.heads, *table.rows]
    needed = sum(1 + max(len(text_of(row[place])) for row in lines) for place in range(n_columns))
    if needed <= width:
        return [list(range(n_columns))]
    tests = range(_N_FIXED, n_columns, 2)  # an accuracy and a difference
    return [list(range(_N_FIXED)), *([0, place, place + 1] for place in tests)]


def markdown(table: BenchTable) -> str:
    """Return the table as Markdown."""
    lines = []
    for shown in tables(table):
        lines += [f"## {shown.title}", "", *shown.markdown(), ""]
    return "\n".join([*lines, *(f"- {line}" for line in notes(table))]) + "\n"


def latex(table: BenchTable) -> str:
    """Return the table as LaTeX."""
    lines = [r"% needs \usepackage{booktabs}"]
    for shown in tables(table):
        title = rf"\par\noindent\textbf{{{latex_escaped(shown.title)}}}\par"
        lines += [title, *shown.latex()]
    return "\n".join([*lines, *map(latex_note, notes(table))]) + "\n"


def save(table: BenchTable, folder: Path) -> list[Path]:
    """Write the table as JSON, Markdown and LaTeX, and its figure; return the files.

    The figure is drawn first, so that nothing is written if that fails.
    """
    drawn = plot(table)
    texts = {
        "json": json.dumps(json_values(table), indent=1, allow_nan=False) + "\n",
        "md": markdown(table),
        "tex": latex(table),
    }
    files = []
    for kind, text in texts.items():
        files.append(folder / f"{NAME}.{kind}")
        with atomic_write(files[-1]) as unfinished:
            unfinished.write_text(text, "utf-8")
    return [*files, *figures.save(drawn, folder, NAME)]


def json_values(table: BenchTable) -> dict[str, Any]:
    """Return the values to write as JSON, and the tables with their texts, for the report."""
    texts = [
        {"title": shown.title, "columns": shown.heads, "rows": shown.rows}
        for shown in tables(table)
    ]
    return {**table.to_json(), "tables": texts, "notes": notes(table)}


def tables(table: BenchTable) -> list[Table]:
    """Return the table of each task."""
    return [_task_table(table, task, rows) for task, rows in table.tasks.items()]


def _task_table(table: BenchTable, task: str, rows: Sequence[BenchRow]) -> Table:
    heads = ["Binding", "Parameters", "Cost", "Samples to 90%"]
    for score in rows[0].scores:
        heads.append(score.title)
        if score.split != HELD_OUT:
            heads.append(f"{score.title} minus {table.reference}")
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


def notes(table: BenchTable) -> list[str]:
    """Return how to read the table, and how much of it there is."""
    n_tests = sum(score.test is not None for row in table.rows for score in row.scores)
    seeds = {row.seeds for row in table.rows}
    counts = sorted({len(own) for own in seeds})
    over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [
        f"{table.n_done} of {table.n_runs} runs are done.",
        "All bindings are trained on the same sequence of samples. Accuracies are in %: mean ± "
        f"standard deviation over {over} seeds, of the model at the end of the budget. Held out: "
        "questions of the training distribution that are not trained on.",
        f"Differences from {table.reference} are in points. The first p is over seeds (paired "
        "t-test): would other seeds show a difference too? It has little power with few seeds. The "
        "second p is over questions (sign flips): would these trained models differ on other "
        f"questions too? Each is Holm-adjusted over the {n_tests} comparisons of the table.",
        "Samples to 90%: the first validation with 90% of the held-out questions correct, mean "
        "over the seeds that reach it. Cost: processor time of a training step relative to none, "
        "with one thread, median of interleaved rounds.",
    ]


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
