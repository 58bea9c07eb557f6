"""The table of a bench for a terminal, as Markdown and LaTeX, and all its files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tp_transformer.foundation import atomic, figures
from tp_transformer.show.bench import ABSENT, accuracy_text, difference_text, samples_text
from tp_transformer.show.document import latex_escaped, markdown_table
from tp_transformer.study.bench.figure import plot
from tp_transformer.study.bench.table import HELD_OUT, BenchRow, BenchTable, BenchTest

NAME = "bench"  # of the files
_N_FIXED = 5  # columns before those of test splits


def render(table: BenchTable, console: Console) -> None:
    """Print the table; where a terminal is narrow, the columns of each test split apart."""
    for task, rows in table.tasks.items():
        console.print(Rule(f"[bold]{_title(task, rows)}[/]", align="left"))
        heads, body = task_table(table, rows)
        for columns in _column_groups([heads, *body], console.width):
            shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
            for place in columns:
                justify: Literal["left", "right"] = "right" if place else "left"
                shown.add_column(Text(heads[place]), justify=justify, no_wrap=not place)
            for cells in body:
                shown.add_row(*(Text(cells[place]) for place in columns))
            console.print(shown)
            console.print()
    for line in notes(table):
        console.print(Text(line, style="dim"))


def _column_groups(lines: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the columns of each table to print: all in one if there is room."""
    n_columns = len(lines[0])
    needed = sum(1 + max(len(line[place]) for line in lines) for place in range(n_columns))
    if needed <= width:
        return [list(range(n_columns))]
    tests = range(_N_FIXED, n_columns, 2)  # an accuracy and a difference
    return [list(range(_N_FIXED)), *([0, place, place + 1] for place in tests)]


def markdown(table: BenchTable) -> str:
    """Return the table as Markdown."""
    lines = []
    for task, rows in table.tasks.items():
        lines += [f"## {_title(task, rows)}", "", *markdown_table(*task_table(table, rows)), ""]
    return "\n".join([*lines, *(f"- {line}" for line in notes(table))]) + "\n"


def latex(table: BenchTable) -> str:
    """Return the table as LaTeX."""
    lines = [r"% needs \usepackage{booktabs}"]
    for task, rows in table.tasks.items():
        heads, body = task_table(table, rows)
        lines += [
            rf"\par\noindent\textbf{{{latex_escaped(_title(task, rows))}}}\par",
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, heads)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, line)) + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    notes_ = (rf"\par\noindent{{\footnotesize {_latex(line)}\par}}" for line in notes(table))
    return "\n".join([*lines, *notes_]) + "\n"


def save(table: BenchTable, folder: Path) -> list[Path]:
    """Write the table as JSON, Markdown and LaTeX, and its figure; return the files.

    The figure is drawn first, so that nothing is written if that fails.
    """
    drawn = plot(table)
    texts = {
        "json": json.dumps(table.to_json(), indent=1, allow_nan=False) + "\n",
        "md": markdown(table),
        "tex": latex(table),
    }
    files = []
    for kind, text in texts.items():
        files.append(folder / f"{NAME}.{kind}")
        with atomic.whole(files[-1]) as unfinished:
            unfinished.write_text(text, "utf-8")
    return [*files, *figures.save(drawn, folder, NAME)]


def task_table(table: BenchTable, rows: Sequence[BenchRow]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a task."""
    heads = ["Binding", "Parameters", "Cost", "Samples to 90%"]
    for score in rows[0].scores:
        heads.append(score.title)
        if score.split != HELD_OUT:
            heads.append(f"{score.title} minus {table.reference}")
    body = []
    for row in rows:
        cost = ABSENT if row.cost is None else f"{row.cost:.2f}"
        cells = [row.variant, f"{row.n_parameters:,}", cost, samples_text(row.samples_to_learn)]
        for score in row.scores:
            cells.append(accuracy_text(score.mean, score.spread))
            if score.split != HELD_OUT:
                cells.append(ABSENT if score.test is None else _difference(score.test))
        body.append(cells)
    return heads, body


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


def _title(task: str, rows: Sequence[BenchRow]) -> str:
    return f"{task}, {rows[0].samples:,} samples"


def _difference(test: BenchTest) -> str:
    return difference_text(test.difference, test.p_seeds_holm, test.p_questions_holm)


def _latex(text: str) -> str:
    return latex_escaped(text).replace("±", r"$\pm$")
