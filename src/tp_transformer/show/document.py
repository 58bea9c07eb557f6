"""Comparisons of results as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from tp_transformer.data.task import TRAIN, Task
from tp_transformer.scoring.compare import (
    OURS,
    AverageCell,
    SplitPair,
    caveats,
    coverage,
    module_names,
    named_apart,
    rows,
    task_of,
)
from tp_transformer.scoring.results import ModuleScore, Results
from tp_transformer.scoring.seeds import question_pairs, seed_groups, seed_scores, seed_tests
from tp_transformer.show.table import (
    SOURCES,
    above_95,
    averages_heads,
    averages_title,
    footnotes,
    pair_line,
    seed_lines,
    steps_of,
)


def markdown(results: Sequence[Results]) -> str:
    """Return Table 1, the modules and the pairs as Markdown."""
    results = named_apart(results)
    task = task_of(results)
    lines = [f"## {averages_title(results)}", "", *markdown_table(*averages(results)), ""]
    lines += [f"{line}  " for line in footnotes(results)]
    for split in task.splits:
        heads, body = _module_strings(results, split)
        if body:
            lines += ["", f"## {task.title(split)}", "", *markdown_table(heads, body)]
    for first, other, found in question_pairs(results):
        lines += ["", f"## {first.name} minus {other.name}, on the same questions", ""]
        lines += [f"- {pair_line(one, first.name, other.name)}" for one in found] or [
            "The two have no module with the same questions."
        ]
    if found_seeds := seed_lines(results):
        lines += ["", "## Seeds", "", *(f"- {line}" for line in found_seeds)]
    return "\n".join(lines) + "\n"


def markdown_table(
    heads: Sequence[str], body: Sequence[Sequence[str]], n_texts: int = 1
) -> list[str]:
    """Return the lines of a table in Markdown: columns of texts, then columns of numbers."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (heads, *body)]
    lines = [f"| {' | '.join(line)} |" for line in escaped]
    rule = "|---" * n_texts + "|---:" * (len(heads) - n_texts) + "|"
    return [lines[0], rule, *lines[1:]]


def averages(results: Sequence[Results]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of the table of averages."""
    task = task_of(results)
    body = []
    for row in rows(results):
        body.append([row.name, row.source, row.weights, steps_of(row)])
        for split in task.splits:
            cell = row.cells.get(split)
            body[-1] += [_average(task, split, cell), *above_95(split, cell)]
    return ["Model", "Source", "Weights", "Steps", *averages_heads(task)], body


def _average(task: Task, split: str, cell: AverageCell | None) -> str:
    if cell is None:
        return "-"
    text = f"{cell.accuracy:.2%}"
    if cell.interval is not None:
        text += f" ({cell.interval[0]:.2%} to {cell.interval[1]:.2%})"
    if covered := coverage(task, split, cell.n_modules):
        text += f" ({covered})"
    return text


def _module_strings(results: Sequence[Results], split: str) -> tuple[list[str], list[list[str]]]:
    own = [one for one in results if split in one.splits]
    body = []
    for name in module_names(own, split):
        scores = [one.splits[split].modules.get(name) for one in own]
        body.append([name, *("-" if score is None else _accuracy(score) for score in scores)])
    return ["Module", *(one.name for one in own)], body


def _accuracy(score: ModuleScore) -> str:
    low, high = score.interval
    return f"{score.accuracy:.2%} ({low:.2%} to {high:.2%})"


CSV_COLUMNS = (
    *("kind", "source", "model", "versus", "split", "module", "n_modules", "n", "right"),
    *("accuracy", "low", "high", "above_95", "loss", "steps", "weights", "p", "p_holm", "note"),
    *("seeds", "spread"),
)


def csv_text(results: Sequence[Results]) -> str:
    """Return all values as one table in long format."""
    output = io.StringIO()
    writer = csv.DictWriter(output, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(long_rows(results))
    return output.getvalue()


def long_rows(results: Sequence[Results]) -> list[dict[str, Any]]:
    """Return all values, a row for each average, module, difference and note.

    `kind` is average, module, difference, module difference, seeds (the mean over seeds, and as
    `spread` the standard deviation), seeds difference, or note (a caveat).
    """
    results = named_apart(results)
    found = _csv_averages(results)
    for one in results:
        found += _csv_modules(one)
    for first, other, differences in question_pairs(results):
        found += _csv_pairs(first.name, other.name, differences)
    found += _csv_seeds(results)
    return [*found, *({"kind": "note", "note": line} for line in caveats(results))]


def _csv_averages(results: Sequence[Results]) -> list[dict[str, Any]]:
    found = []
    for row in rows(results):
        for split, cell in row.cells.items():
            low, high = cell.interval or (None, None)
            found.append(
                {
                    "kind": "average",
                    "source": row.source,
                    "model": row.name,
                    "split": split,
                    "n_modules": cell.n_modules,
                    "n": cell.n,
                    "accuracy": cell.accuracy,
                    "low": low,
                    "high": high,
                    "above_95": cell.above_95,
                    "steps": row.steps,
                    "weights": row.weights,
                }
            )
    return found


def _csv_modules(results: Results) -> list[dict[str, Any]]:
    return [
        {"kind": "module", "source": OURS, **{key: row[key] for key in CSV_COLUMNS if key in row}}
        for row in results.module_rows()
    ]


def _csv_pairs(first: str, second: str, found: Sequence[SplitPair]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    names = {"source": OURS, "model": first, "versus": second}
    for one in found:
        low, high = one.interval
        lines.append(
            {
                "kind": "difference",
                **names,
                "split": one.split,
                "n_modules": len(one.modules),
                "n": sum(module.agreement.n for module in one.modules.values()),
                "accuracy": one.difference,
                "low": low,
                "high": high,
                "p": one.p,
                "p_holm": one.p_holm,
            }
        )
        lines += [
            {
                "kind": "module difference",
                **names,
                "split": one.split,
                "module": name,
                "n": module.agreement.n,
                "accuracy": module.agreement.difference,
                "p": module.p,
                "p_holm": module.p_holm,
            }
            for name, module in one.modules.items()
        ]
    return lines


def _csv_seeds(results: Sequence[Results]) -> list[dict[str, Any]]:
    first, *others = groups = seed_groups(results)
    found: list[dict[str, Any]] = [
        {
            "kind": "seeds",
            "source": OURS,
            "model": group.name,
            "split": one.split,
            "accuracy": one.mean,
            "low": one.range[0],
            "high": one.range[1],
            "seeds": one.n_seeds,
            "spread": one.spread,
        }
        for group in groups
        for one in seed_scores(group)
    ]
    for other, tests in zip(others, seed_tests(first, others), strict=True):
        for test in tests:
            low, high = test.interval or (None, None)
            found.append(
                {
                    "kind": "seeds difference",
                    "source": OURS,
                    "model": first.name,
                    "versus": other.name,
                    "split": test.split,
                    "accuracy": test.difference,
                    "low": low,
                    "high": high,
                    "p": test.p,
                    "p_holm": test.p_holm,
                    "seeds": min(test.n_seeds),
                }
            )
    return found


def latex(results: Sequence[Results]) -> str:
    """Return Table 1, with the results below the rows of the paper, and the modules as LaTeX."""
    results = named_apart(results)
    task = task_of(results)
    titles = {split: latex_escaped(task.title(split)) for split in task.splits}
    wide = {split: rf"\multicolumn{{2}}{{c}}{{{title}}}" for split, title in titles.items()}
    heads = [titles[split] if split == TRAIN else wide[split] for split in titles]
    below = ["" if split == TRAIN else r" acc & $>$95\%" for split in titles]
    n_columns = 3 + len(averages_heads(task))
    lines = [
        r"% needs \usepackage{booktabs, longtable}",
        rf"\begin{{tabular}}{{l{'c' * (n_columns - 1)}}}",
        r"\toprule",
        f" & {' & '.join(['Weights', 'Steps', *heads])} " r"\\",
        f" & & &{' &'.join(below)} " r"\\",
    ]
    source = None
    for row in rows(results):
        if row.source != source:
            source = row.source
            title = latex_escaped(SOURCES[source])
            lines += [r"\midrule", rf"\multicolumn{{{n_columns}}}{{l}}{{\emph{{{title}}}}} \\"]
        cells = [latex_escaped(row.name), row.weights, steps_of(row)]
        for split in task.splits:
            cell = row.cells.get(split)
            cells += [_latex(task, split, cell), *above_95(split, cell)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    for line in caveats(results):
        note = latex_escaped(f"Not fully comparable: {line}.")
        lines.append(rf"\par\noindent{{\footnotesize {note}\par}}")
    for line in seed_lines(results):
        lines.append(rf"\par\noindent{{\footnotesize {latex_escaped(line)}\par}}")
    for split in task.splits:
        heads, body = _module_strings(results, split)
        if body:
            lines += ["", rf"% {task.title(split)}"]
            lines += [rf"\begin{{longtable}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
            lines += [" & ".join(map(latex_escaped, heads)) + r" \\", r"\midrule"]
            lines += [" & ".join(map(latex_escaped, line)) + r" \\" for line in body]
            lines += [r"\bottomrule", r"\end{longtable}"]
    return "\n".join(lines) + "\n"


def _latex(task: Task, split: str, cell: AverageCell | None) -> str:
    if cell is None:
        return "-"
    text = latex_escaped(f"{cell.accuracy:.2%}")
    if cell.interval is not None:
        low, high = cell.interval
        text += rf" {{\small$\pm${100 * (high - low) / 2:.2f}}}"
    if covered := coverage(task, split, cell.n_modules):
        text += rf" {{\small({covered})}}"
    return text


def latex_escaped(text: str) -> str:
    """Return a text with the special characters of LaTeX escaped."""
    special = {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": r"\textbackslash{}"}
    special |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}"}
    return "".join(special.get(character, character) for character in text)
