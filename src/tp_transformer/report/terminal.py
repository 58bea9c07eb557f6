"""What verbs print: results of an evaluation, modules side by side, findings of an analysis."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from tp_transformer.data.task import TRAIN
from tp_transformer.scoring.compare import HELD_OUT_UNKNOWN, coverage, module_names
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.results import HIGH, ModuleScore, Results, SplitScore
from tp_transformer.scoring.statistics import Interval
from tp_transformer.table import Table, plain_table

if TYPE_CHECKING:
    from tp_transformer.interpret.core.result import Result

_WIDE = 100  # columns from which more is shown
_NAME = 40  # the longest name of a module
_PERCENT = 7  # columns of an accuracy, with a space
_SURE, _UNSURE = "█", "▒"
_LEGEND = f"{_SURE} lower limit of the accuracy   {_UNSURE} its 95% interval (Wilson)"
_CLASSES = (
    (HIGH, 1.0, "strong: above 95%", "green"),
    (0.5, HIGH, "in between", "yellow"),
    (-1.0, 0.5, "weak: at most 50%", "red"),
)


def interval_bar(interval: Interval, width: int) -> Text:
    """Return a bar up to the lower limit of an interval, and a paler one up to the upper."""
    low, high = (round(limit * width) for limit in interval)
    text = Text(_SURE * low)
    text.append(_UNSURE * max(high - low, 1 if low < width else 0), style="dim")
    text.append(" " * (width - len(text)))
    return text


def render_results(results: Results, console: Console) -> None:
    """Print the results of an evaluation."""
    tests = {name: split for name, split in results.splits.items() if name != TRAIN}
    for name, split in (tests or results.splits).items():
        console.print(Rule(f"[bold]{results.task.title(name)}[/]", align="left"))
        console.print(_modules_table(split, console.width))
        console.print()
    console.print(Text(_LEGEND, style="dim"))
    console.print(Text(results.name, style="bold"))
    console.print(_averages(results, console.width).terminal())
    for line in _notes(results):
        console.print(Text(line, style="dim"))


def _modules_table(split: SplitScore, width: int) -> RichTable:
    is_wide = width >= _WIDE
    fixed = _NAME + 2 + 7 + 17 + (28 if is_wide else 0)
    bar = max(8, min(40, width - fixed))
    table = plain_table()
    table.add_column("module", no_wrap=True, min_width=_NAME + 2 if is_wide else None)
    table.add_column("", no_wrap=True, width=bar)
    for head in ("correct", "95% interval", *(("questions",) if is_wide else ())):
        table.add_column(head, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("common mistake", no_wrap=True)
    ordered = sorted(split.modules.items(), key=lambda item: -item[1].accuracy)
    for least, most, title, colour in _CLASSES:
        scores = {name: score for name, score in ordered if least < score.accuracy <= most}
        if scores:
            # Surely: the whole interval is in the class.
            intervals = [score.interval for score in scores.values()]
            n_sure = sum(least < low and high <= most for low, high in intervals)
            heading = f"{title} ({len(scores)}, {n_sure} of them surely)"
            table.add_row(Text(heading, style=f"bold {colour}"))
        for name, score in scores.items():
            table.add_row(*_module_cells(name, score, bar, colour, is_wide))
    return table


def _module_cells(
    name: str, score: ModuleScore, width: int, colour: str, is_wide: bool
) -> Iterator[Text]:
    yield Text(f"  {name}")
    bar = interval_bar(score.interval, width)
    bar.stylize(colour)
    yield bar
    low, high = score.interval
    yield Text(f"{score.accuracy:.1%}", style="bold")
    yield Text(f"{low:.1%} - {high:.1%}", style="dim")
    if is_wide:
        yield Text(f"{score.n:,}")
        yield Text(_commonest(score), style="dim")


def _commonest(score: ModuleScore) -> str:
    """Return the most common kind of mistake, except for `other`."""
    named = {kind: count for kind, count in score.wrong.items() if kind != "other"}
    kind = max(named, key=lambda kind: named[kind], default="")
    total = sum(score.wrong.values())
    return f"{kind} {named[kind] / total:.0%}" if kind and named[kind] >= 0.1 * total else ""


def _averages(results: Results, width: int) -> Table:
    rows = []
    for name, split in results.splits.items():
        average, (low, high) = split.average
        n_modules = len(split.modules)
        covered = coverage(results.task, name, n_modules).removesuffix(" modules") or n_modules
        row = [f"{results.task.title(name)} ({covered})", f"{average:.2%}"]
        row.append(f"{low:.2%} - {high:.2%}" if width >= _WIDE else f"{low:.1%} - {high:.1%}")
        row += [str(split.above_95), str(split.surely_above_95), f"{split.n:,}"]
        rows.append([*row, f"{split.loss:.3f}"])
    heads = ["average over modules", "accuracy", "95% interval", ">95%", "surely", "questions"]
    return Table(heads=[*heads, "loss"], rows=rows)


def _notes(results: Results) -> Iterator[str]:
    wrong: Counter[str] = Counter()
    for split in results.splits.values():
        for score in split.modules.values():
            wrong.update(score.wrong)
    if total := sum(wrong.values()):
        kinds = (f"{KINDS[kind]} {wrong[kind] / total:.1%}" for kind in KINDS if kind in wrong)
        yield f"Of {total:,} diagnosed wrong answers: {'; '.join(kinds)}."
        diagnosis = results.made.get("diagnosis") or {}
        if not diagnosis.get("has_sympy", True):
            yield "Without sympy, answers that are equal in value are not identified."
        elif n_late := diagnosis.get("n_out_of_time", 0):
            yield f"sympy timed out on {n_late:,} comparisons of values."
    if TRAIN in results.splits and results.held_out is None:
        yield f"Train {HELD_OUT_UNKNOWN}."
    elif TRAIN in results.splits:
        yield f"Train excludes the {results.held_out:,} questions held out for validation."
    n_ties = len(results.near_ties)
    yield (
        f"{n_ties:,} near-tie{'' if n_ties == 1 else 's'}: answers with a margin below 0.001, "
        "decided in float64 and listed in the results."
    )
    if results.decoding is not None:
        n_other = len(results.decoding["other_verdict"])
        ties = results.decoding["near_ties_among_them"]
        agrees = "all" if not n_other else f"all but {n_other} ({ties} of them near-ties)"
        yield (
            f"Greedy decoding of {results.decoding['n']:,} questions gives the same verdict "
            f"on {agrees}."
        )


def render_modules(results: Sequence[Results], split: str, console: Console) -> None:
    """Print the accuracies on the modules of a split, in as many tables as needed."""
    scored = [each for each in results if split in each.splits]
    modules = module_names(scored, split)
    room = console.width - max(map(len, modules)) - 1
    width = max(_PERCENT, *(cell_len(each.name) + 1 for each in scored))
    heads = [each.name for each in scored]
    if width * len(scored) > room:
        width = _PERCENT
        heads = [f"({number})" for number in range(1, len(scored) + 1)]
        for head, each in zip(heads, scored, strict=True):
            console.print(Text(f"{head} {each.name}"))
    at_once = max(1, room // width)
    for start in range(0, len(scored), at_once):
        some = slice(start, start + at_once)
        splits = [each.splits[split].modules for each in scored[some]]
        rows = [
            [name, *(f"{of[name].accuracy:.1%}" if name in of else "-" for of in splits)]
            for name in modules
        ]
        console.print(Table(heads=["module", *heads[some]], rows=rows).terminal())


def render_findings(result: "Result", console: Console) -> None:
    """Print the findings, wrapped at words to the width of the terminal, figures and tables."""
    for line in result.summary():
        _print_wrapped(line, console)
    if result.name == "roles":
        from tp_transformer.report.roles import render_clusters

        render_clusters(result, console)
    for table in result.tables():
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(Table(heads=table.columns, rows=table.rows).terminal())
        _print_wrapped(table.note, console, style="dim")


def _print_wrapped(text: str, console: Console, style: str = "") -> None:
    """Print a text in lines that end between words, all but the first indented."""
    lines = textwrap.fill(text, console.width, subsequent_indent="  ", break_long_words=False)
    console.print(Text(lines, style=style), soft_wrap=True)


def heading(console: Console, text: str) -> None:
    """Print the heading of a part."""
    console.print()
    console.print(Rule(Text(text, style="bold"), characters="━", style="dim"))


def written_line(files: Sequence[Path]) -> str:
    """Name all files that were written into a folder in one line."""
    suffixes: dict[str, list[str]] = {}  # of each name
    for file in files:
        suffixes.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
    names = (
        f"{stem}.{kinds[0]}" if len(kinds) == 1 else f"{stem}.{{{','.join(kinds)}}}"
        for stem, kinds in suffixes.items()
    )
    return f"written: {', '.join(str(files[0].parent / name) for name in names)}"
