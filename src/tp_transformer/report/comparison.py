"""Results side by side: what `tpt compare` prints, as an object, in all formats."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import ResultsError
from tp_transformer.report.terminal import render_modules
from tp_transformer.scoring.compare import (
    OURS,
    PAPER,
    AverageCell,
    SeedTest,
    SplitPair,
    caveats,
    coverage,
    is_published,
    module_names,
    named_apart,
    question_pairs,
    seed_groups,
    seed_scores,
    seed_tests,
    task_of,
)
from tp_transformer.scoring.compare import rows as score_rows
from tp_transformer.scoring.published import INTERPOLATION_AFTER_2M_STEPS, SOURCE
from tp_transformer.scoring.results import ModuleScore, Results
from tp_transformer.scoring.statistics import Interval
from tp_transformer.table import (
    Cell,
    NumberCell,
    Table,
    frame,
    latex_note,
    notebook_table,
    plain_table,
)

if TYPE_CHECKING:
    import pandas as pd

ONE_SEED = (
    "Each result is of one training seed: intervals and p-values are about questions, not about "
    "seeds."
)
NO_PAIRS = "The two have no module with the same questions."
_SOURCES = {PAPER: f"as printed in the paper ({SOURCE})", OURS: "measured here"}
_WIDTH = 100  # columns of the text


def compare(*results: Results | str | Path) -> "Comparison":
    """Compare results with each other, and with the paper's Table 1 if they are on its dataset.

    Args:
        results: what `evaluate` returned or wrote; the first is compared with each of the others
    """
    if not results:
        raise ResultsError("there is nothing to compare: give at least one result")
    return Comparison(*(r if isinstance(r, Results) else Results.read(r) for r in results))


class Comparison:
    """Results of one task side by side; as text, it is what `tpt compare` prints."""

    def __init__(self, *results: Results) -> None:
        self.results = named_apart(results)
        self.task = task_of(self.results)

    def __repr__(self) -> str:
        names = ", ".join(each.name for each in self.results)
        return f"Comparison({names}; {self.task.name})"

    def __str__(self) -> str:
        file = io.StringIO()
        self.render(Console(file=file, width=_WIDTH, highlight=False))
        return file.getvalue()

    def _repr_html_(self) -> str:
        table = averages_table(self.results)
        notes = [*self.differences, *table.notes]
        return notebook_table(table.title, table.heads, table.rows, notes)

    @property
    def differences(self) -> list[str]:
        """The first result minus each of the others, in sentences.

        On the same questions, or over seeds where there are several.
        """
        return question_lines(self.results) + seed_lines(self.results)

    def frame(self) -> "pd.DataFrame":
        """Return all numbers in long format.

        The column `kind` is average, module, difference (of two averages), module difference, seeds
        (mean and spread over seeds), seeds difference, or note (what makes results incomparable).
        """
        return frame(long_rows(self.results), COLUMNS)

    def to_csv(self) -> str:
        """Return the rows of `frame` as CSV."""
        output = io.StringIO()
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(long_rows(self.results))
        return output.getvalue()

    def to_markdown(self) -> str:
        """Return the averages, the modules and the differences as Markdown."""
        averages = averages_table(self.results)
        lines = [f"## {averages.title}", "", *averages.markdown(), ""]
        lines += [f"{line}  " for line in averages.notes]
        for table in self._module_tables():
            lines += ["", f"## {table.title}", "", *table.markdown()]
        for first, other, pairs in question_pairs(self.results):
            lines += ["", f"## {first.name} minus {other.name}, on the same questions", ""]
            differences = [f"- {pair_line(pair, first.name, other.name)}" for pair in pairs]
            lines += differences or [NO_PAIRS]
        if seeds := seed_lines(self.results):
            lines += ["", "## Seeds", "", *(f"- {line}" for line in seeds)]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return the averages, below the rows of the paper, and the modules as LaTeX."""
        lines = [r"% needs \usepackage{booktabs, longtable}"]
        lines += averages_table(self.results).latex()
        lines += [latex_note(f"Not fully comparable: {line}.") for line in caveats(self.results)]
        lines += map(latex_note, seed_lines(self.results))
        for table in self._module_tables():
            lines += ["", f"% {table.title}", *table.latex("longtable")]
        return "\n".join(lines) + "\n"

    def _module_tables(self) -> list[Table]:
        tables = (modules_table(self.results, split) for split in self.task.splits)
        return [table for table in tables if table.rows]

    def render(self, console: Console) -> None:
        """Print the accuracies by module, the comparison of pairs, and Table 1."""
        for split in self.task.test_splits:
            if any(split in each.splits for each in self.results):
                console.print(Rule(f"[bold]{self.task.title(split)}[/]", align="left"))
                render_modules(self.results, split, console)
                console.print()
        for first, other, pairs in question_pairs(self.results):
            _render_pairs(first.name, other.name, pairs, console)
        if seeds := seed_lines(self.results):
            console.print(Rule("[bold]Seeds[/]", align="left"))
            for line in seeds:
                console.print(Text(line))
            console.print()
        averages = averages_table(self.results, longest_title=9)
        console.print(Rule(f"[bold]{averages.title}[/]", align="left"))
        console.print(averages.terminal())
        for line in averages.notes:
            console.print(Text(line, style="dim"))


def averages_table(results: Sequence[Results], longest_title: int = 100) -> Table:
    """Return the averages over modules: the paper's Table 1, where that has our task."""
    task = task_of(results)
    heads = ["Model", "Source", "Weights", "Steps"]
    for split in task.splits:
        title = task.title(split)
        short = title if len(title) <= longest_title else f"{title[: longest_title - 1]}."
        heads += [short] if split == TRAIN else [short, ">95%"]
    body: list[list[Cell]] = []
    for row in score_rows(results):
        steps = "-" if row.steps is None else NumberCell(row.steps, _steps(row.steps))
        body.append([row.name, row.source, _weights(row.weights), steps])
        for split in task.splits:
            cell = row.cells.get(split)
            body[-1].append(_average(task, split, cell))
            if split != TRAIN:
                count = None if cell is None else cell.above_95
                body[-1].append("-" if count is None else str(count))
    return Table(
        title="Table 1" if is_published(results) else "Averages",
        heads=heads,
        rows=body,
        notes=footnotes(results),
        n_texts=2,
        groups=_SOURCES,
    )


def _weights(text: str) -> Cell:
    factor = {"M": 1e6, "k": 1e3}.get(text[-1:])
    return text if factor is None else NumberCell(float(text[:-1]) * factor, text)


def _steps(steps: int) -> str:
    """Format training steps as in the paper."""
    return f"{steps // 1000}k" if steps >= 10_000 else f"{steps:,}"


def _average(task: Task, split: str, cell: AverageCell | None) -> Cell:
    if cell is None:
        return "-"
    text = f"{cell.accuracy:.2%}"
    if cell.interval is not None:
        text += f"\n±{(cell.interval[1] - cell.interval[0]) / 2:.2%}"
    if covered := coverage(task, split, cell.n_modules):
        text += f"\n({covered.replace(' modules', chr(10) + 'modules')})"
    return NumberCell(cell.accuracy, text)


def modules_table(results: Sequence[Results], split: str) -> Table:
    """Return the accuracies on the modules of a split."""
    scored = [each for each in results if split in each.splits]
    body: list[list[Cell]] = []
    for name in module_names(scored, split) if scored else ():
        scores = [each.splits[split].modules.get(name) for each in scored]
        n_questions = max(score.n for score in scores if score is not None)
        cells = ["-" if score is None else _accuracy_cell(score) for score in scores]
        body.append([name, NumberCell(n_questions, f"{n_questions:,}"), *cells])
    heads = ["Module", "Questions", *(each.name for each in scored)]
    return Table(title=task_of(results).title(split), heads=heads, rows=body)


def _accuracy_cell(score: ModuleScore) -> Cell:
    """Return an accuracy with its interval."""
    low, high = score.interval
    return NumberCell(score.accuracy, f"{score.accuracy:.1%} ({low:.1%} to {high:.1%})")


def _render_pairs(first: str, second: str, pairs: Sequence[SplitPair], console: Console) -> None:
    title = Text.assemble((first, "bold"), " minus ", (second, "bold"))
    console.print(Rule(title.append(", on the same questions"), align="left"))
    if not pairs:
        console.print(Text(NO_PAIRS))
    for pair in pairs:
        console.print(Text(pair_line(pair, first, second)))
        sure = [item for item in pair.modules.items() if item[1].is_sure]
        table = plain_table(show_header=False)
        for name, module in sorted(sure, key=lambda item: -item[1].agreement.difference):
            difference = module.agreement.difference
            colour = "green" if difference > 0 else "red"
            table.add_row(
                f"  {name}",
                Text(f"{100 * difference:+.1f}", style=colour, justify="right"),
                Text(f"p {_p(module.p_holm)}", style="dim"),
            )
        if sure:
            console.print(table)
    console.print()


def question_lines(results: Sequence[Results]) -> list[str]:
    """Describe the differences of the first result from the others, on the same questions."""
    return [
        f"{first.name} minus {other.name}, {pair_line(pair, first.name, other.name)}"
        for first, other, pairs in question_pairs(results)
        for pair in pairs
    ]


def pair_line(pair: SplitPair, first: str, second: str) -> str:
    """Describe the difference of two models on a split."""
    low, high = pair.interval
    sure = [module.agreement.difference for module in pair.modules.values() if module.is_sure]
    better, worse = sum(x > 0 for x in sure), sum(x < 0 for x in sure)
    left = f"; {len(pair.left_out)} are excluded, whose questions differ" if pair.left_out else ""
    return (
        f"{pair.title}: {100 * pair.difference:+.2f} points ({100 * low:+.2f} to "
        f"{100 * high:+.2f}), p {_p(pair.p_holm)} by sign flips within modules, Holm-adjusted. "
        f"Of {len(pair.modules)} modules, {first} is significantly better on {better}, "
        f"{second} on {worse}{left}."
    )


def seed_lines(results: Sequence[Results]) -> list[str]:
    """Describe the mean and spread of runs that differ only in the seed, and tests over seeds.

    Nothing if no run has several seeds.
    """
    first, *others = groups = seed_groups(results)
    if all(len(group.results) == 1 for group in groups):
        return []
    lines = []
    for group in groups:
        seeds = ", ".join(map(str, group.seeds))
        lines += [
            f"{group.name}, {score.title}: {score.mean:.2%} on average over {score.n_seeds} seeds "
            f"({seeds}), standard deviation {100 * score.spread:.2f} points, from "
            f"{score.range[0]:.2%} to {score.range[1]:.2%}."
            for score in seed_scores(group)
        ] or [f"{group.name}: one seed; the variation between its seeds is unknown."]
    for other, tests in zip(others, seed_tests(first, others), strict=True):
        versus = f"{first.name} minus {other.name}"
        lines += [f"{versus}, {_seed_test_line(test)}" for test in tests] or [
            f"{versus}: no test over seeds, which needs two seeds of each."
        ]
    return lines


def _seed_test_line(test: SeedTest) -> str:
    text = f"{test.title}: {100 * test.difference:+.2f} points"
    if test.interval is None or test.p_holm is None:
        return f"{text}; no test: the seeds do not vary, or scipy is not installed."
    low, high = test.interval
    return (
        f"{text} ({100 * low:+.2f} to {100 * high:+.2f}), p {_p(test.p_holm)} by Welch's t-test "
        f"over {test.n_seeds[0]} and {test.n_seeds[1]} seeds, Holm-adjusted."
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.4f}" if value < 0.1 else f"= {value:.2f}"


def footnotes(results: Sequence[Results]) -> list[str]:
    """Return the footnotes of the averages."""
    after = f"{INTERPOLATION_AFTER_2M_STEPS:.2%} on interpolation after 2000k steps"
    return [
        "Exact match averaged over modules; ± is half of a 95% interval; >95% counts modules.",
        *([f"The paper also has {after}."] if is_published(results) else []),
        *([ONE_SEED] if all(len(group.results) == 1 for group in seed_groups(results)) else []),
        *(f"Not fully comparable: {line}." for line in caveats(results)),
    ]


COLUMNS = (
    *("kind", "source", "model", "versus", "split", "module", "n_modules", "n", "right"),
    *("accuracy", "low", "high", "above_95", "loss", "steps", "weights", "p", "p_holm", "note"),
    *("seeds", "spread"),
)


def long_rows(results: Sequence[Results]) -> list[dict[str, Any]]:
    """Return all values, a row for each average, module, difference and note.

    `kind` is average, module, difference, module difference, seeds (the mean over seeds, and as
    `spread` the standard deviation), seeds difference, or note (a caveat).
    """
    results = named_apart(results)
    rows = [
        {
            **_values("average", cell, cell.interval),
            **{"source": row.source, "model": row.name, "split": split},
            **{"steps": row.steps, "weights": row.weights},
        }
        for row in score_rows(results)
        for split, cell in row.cells.items()
    ]
    for each in results:
        rows += [
            {"kind": "module", "source": OURS, **{key: row[key] for key in row if key in COLUMNS}}
            for row in each.module_rows()
        ]
    for first, other, pairs in question_pairs(results):
        for pair in pairs:
            rows += _pair_rows(pair, {"model": first.name, "versus": other.name})
    rows += _seed_rows(results)
    return [*rows, *({"kind": "note", "note": line} for line in caveats(results))]


def _values(kind: str, value: object, interval: Interval | None) -> dict[str, Any]:
    """Return a row with the fields of a value that are columns."""
    low, high = interval or (None, None)
    columns = {name: field for name, field in vars(value).items() if name in COLUMNS}
    return {"kind": kind, "source": OURS, "low": low, "high": high, **columns}


def _pair_rows(pair: SplitPair, names: dict[str, str]) -> list[dict[str, Any]]:
    of_split = {
        **_values("difference", pair, pair.interval),
        **{"n_modules": len(pair.modules), "accuracy": pair.difference, **names},
        "n": sum(module.agreement.n for module in pair.modules.values()),
    }
    of_modules = [
        {
            **_values("module difference", module, None),
            **{"split": pair.split, "module": name, **names},
            **{"n": module.agreement.n, "accuracy": module.agreement.difference},
        }
        for name, module in pair.modules.items()
    ]
    return [of_split, *of_modules]


def _seed_rows(results: Sequence[Results]) -> list[dict[str, Any]]:
    first, *others = groups = seed_groups(results)
    rows = [
        {
            **_values("seeds", score, score.range),
            **{"model": group.name, "accuracy": score.mean, "seeds": score.n_seeds},
        }
        for group in groups
        for score in seed_scores(group)
    ]
    for other, tests in zip(others, seed_tests(first, others), strict=True):
        rows += [
            {
                **_values("seeds difference", test, test.interval),
                **{"model": first.name, "versus": other.name},
                **{"accuracy": test.difference, "seeds": min(test.n_seeds)},
            }
            for test in tests
        ]
    return rows
