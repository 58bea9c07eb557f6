"""Tables for terminals: results by module, comparisons, Table 1."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tp_transformer.data.task import TRAIN, Task
from tp_transformer.foundation.statistics import Interval
from tp_transformer.published import INTERPOLATION_AFTER_2M_STEPS, SOURCE
from tp_transformer.scoring.compare import (
    HELD_OUT_UNKNOWN,
    OURS,
    PAPER,
    AverageCell,
    ScoreRow,
    SplitPair,
    caveats,
    coverage,
    is_published,
    module_names,
    named_apart,
    rows,
    task_of,
)
from tp_transformer.scoring.diagnose import KINDS
from tp_transformer.scoring.results import HIGH, ModuleScore, Results, SplitScore, Values
from tp_transformer.scoring.seeds import (
    SeedTest,
    question_pairs,
    seed_groups,
    seed_scores,
    seed_tests,
)

SOURCES = {PAPER: f"as printed in the paper ({SOURCE})", OURS: "measured here"}
_WIDE = 100  # columns from which more is shown
_NAME = 40  # the longest name of a module
_PERCENT = 7  # columns of an accuracy, with a space
_SHORTEST_BAR = 4
_SURE, _UNSURE = "█", "▒"

ONE_SEED = (
    "Each result is of one training seed: intervals and p-values are about questions, not about "
    "seeds."
)
LEGEND = f"{_SURE} lower limit of the accuracy   {_UNSURE} its 95% interval (Wilson)"
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
    """Print the results of an evaluation: modules by decreasing accuracy, then averages."""
    tests = {name: split for name, split in results.splits.items() if name != TRAIN}
    for name, split in (tests or results.splits).items():
        console.print(Rule(f"[bold]{results.task.title(name)}[/]", align="left"))
        console.print(_modules_table(split, console.width))
        console.print()
    console.print(Text(LEGEND, style="dim"))
    console.print(_summary(results, console.width))
    for line in _notes(results):
        console.print(Text(line, style="dim"))


def _modules_table(split: SplitScore, width: int) -> Table:
    wide = width >= _WIDE
    fixed = _NAME + 2 + 7 + 17 + (16 if wide else 0) + (12 if wide else 0)
    bar = max(8, min(40, width - fixed))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("module", no_wrap=True, min_width=_NAME + 2 if wide else None)
    table.add_column("", no_wrap=True, width=bar)
    table.add_column("correct", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    if wide:
        table.add_column("questions", justify="right", no_wrap=True)
        table.add_column("common mistake", no_wrap=True)
    ordered = sorted(split.modules.items(), key=lambda item: -item[1].accuracy)
    for least, most, title, colour in _CLASSES:
        own = [(n, one) for n, one in ordered if least < one.accuracy <= most]
        if own:
            # Surely: the whole interval is in the class.
            sure = sum(least < one.interval[0] and one.interval[1] <= most for _, one in own)
            heading = f"{title} ({len(own)}, {sure} of them surely)"
            table.add_row(Text(heading, style=f"bold {colour}"))
        for name, one in own:
            table.add_row(*_module_cells(name, one, bar, colour, wide))
    return table


def _module_cells(name: str, one: ModuleScore, bar: int, colour: str, wide: bool) -> list[Text]:
    drawn = interval_bar(one.interval, bar)
    drawn.stylize(colour)
    low, high = one.interval
    cells = [Text(f"  {name}"), drawn, Text(f"{one.accuracy:.1%}", style="bold")]
    cells.append(Text(f"{low:.1%} - {high:.1%}", style="dim"))
    if wide:
        cells += [Text(f"{one.n:,}"), Text(_commonest(one), style="dim")]
    return cells


def _commonest(one: ModuleScore) -> str:
    """Return the most common kind of mistake, except for `other`."""
    named = {kind: count for kind, count in one.wrong.items() if kind != "other"}
    kind = max(named, key=lambda kind: named[kind], default="")
    total = sum(one.wrong.values())
    return f"{kind} {named[kind] / total:.0%}" if kind and named[kind] >= 0.1 * total else ""


def _summary(results: Results, width: int) -> Table:
    table = Table(title=Text(results.name, style="bold"), title_justify="left", box=None)
    table.header_style, table.pad_edge = "bold", False
    table.add_column("average over modules")  # wrapped where there is little room
    headings = ["accuracy", "95% interval", ">95%", "surely", "questions", "loss"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, split in results.splits.items():
        average, (low, high) = split.average
        table.add_row(
            f"{results.task.title(name)} ({_count(results.task, name, split)})",
            Text(f"{average:.2%}", style="bold"),
            f"{low:.2%} - {high:.2%}" if width >= _WIDE else f"{low:.1%} - {high:.1%}",
            str(split.above_95),
            str(split.surely_above_95),
            f"{split.n:,}",
            f"{split.loss:.3f}",
        )
    return table


def _count(task: Task, name: str, split: SplitScore) -> str:
    n_modules = len(split.modules)
    return coverage(task, name, n_modules).removesuffix(" modules") or str(n_modules)


def _notes(results: Results) -> list[str]:
    wrong: dict[str, int] = {}
    for split in results.splits.values():
        for one in split.modules.values():
            for kind, count in one.wrong.items():
                wrong[kind] = wrong.get(kind, 0) + count
    lines = []
    if total := sum(wrong.values()):
        kinds = (f"{KINDS[kind]} {wrong[kind] / total:.1%}" for kind in KINDS if kind in wrong)
        lines.append(f"Of {total:,} diagnosed wrong answers: {'; '.join(kinds)}.")
        lines += _means_notes(results.made.get("diagnosis") or {})
    if TRAIN in results.splits:
        lines.append(
            f"Train {HELD_OUT_UNKNOWN}."
            if results.held_out is None
            else f"Train excludes the {results.held_out:,} questions held out for validation."
        )
    n_ties = len(results.near_ties)
    lines.append(
        f"{n_ties:,} near-tie{'' if n_ties == 1 else 's'}: answers with a margin below 0.001, "
        "decided in float64 and listed in the results."
    )
    if results.decoding is not None:
        n_other = len(results.decoding["other_verdict"])
        ties = results.decoding["near_ties_among_them"]
        agrees = "all" if not n_other else f"all but {n_other} ({ties} of them near-ties)"
        lines.append(
            f"Greedy decoding of {results.decoding['n']:,} questions gives the same verdict "
            f"on {agrees}."
        )
    return lines


def _means_notes(means: Values) -> list[str]:
    """Return notes on answers that may be equal in value but were not found to be."""
    if not means.get("has_sympy", True):
        return ["Without sympy, answers that are equal in value are not identified."]
    n = means.get("n_out_of_time", 0)
    return [f"sympy timed out on {n:,} comparisons of values."] if n else []


def render_comparison(results: Sequence[Results], console: Console) -> None:
    """Print the accuracies by module, the comparison of pairs, and Table 1."""
    results = named_apart(results)
    task = task_of(results)
    for split in task.test_splits:
        if any(split in one.splits for one in results):
            console.print(Rule(f"[bold]{task.title(split)}[/]", align="left"))
            _render_modules(results, split, console)
            console.print()
    for first, other, found in question_pairs(results):
        _render_pairs(first.name, other.name, found, console)
    if lines := seed_lines(results):
        console.print(Rule("[bold]Seeds[/]", align="left"))
        for line in lines:
            console.print(Text(line))
        console.print()
    console.print(Rule(f"[bold]{averages_title(results)}[/]", align="left"))
    console.print(_averages(task, rows(results)))
    for line in footnotes(results):
        console.print(Text(line, style="dim"))


def _render_modules(results: Sequence[Results], split: str, console: Console) -> None:
    """Print the modules of a split, in as many tables as needed, and a legend."""
    own = [one for one in results if split in one.splits]
    names = module_names(own, split)
    room = console.width - max(map(len, names)) - 1
    at_once = max(1, room // _PERCENT)
    has_bars = False
    for start in range(0, len(own), at_once):
        some = own[start : start + at_once]
        bar = min(30, room // len(some) - _PERCENT - 1)
        bar = bar if bar >= _SHORTEST_BAR else 0
        has_bars = has_bars or bar > 0
        heads = {f"({number})": one.name for number, one in enumerate(some, start + 1)}
        if max(map(cell_len, heads.values())) > (bar or _PERCENT - 1):
            for number, name in heads.items():
                console.print(Text(f"{number} {name}"))
        else:
            heads = {name: name for name in heads.values()}
        console.print(_side_by_side(names, [one.splits[split] for one in some], list(heads), bar))
    if has_bars:
        console.print(Text(LEGEND, style="dim"))


def _side_by_side(
    names: Sequence[str], splits: Sequence[SplitScore], heads: Sequence[str], bar: int
) -> Table:
    """Return a table of modules with a bar, if `bar` is positive, and accuracy per model."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("module", no_wrap=True)
    for head in heads:
        if bar:
            table.add_column(Text(head, no_wrap=True), width=bar)
        table.add_column("" if bar else Text(head), justify="right", no_wrap=True)
    for name in names:
        scores = [split.modules.get(name) for split in splits]
        table.add_row(name, *(cell for score in scores for cell in _score_cells(score, bar)))
    return table


def _score_cells(score: ModuleScore | None, bar: int) -> Iterator[Text]:
    if bar:
        yield interval_bar(score.interval, bar) if score else Text()
    yield Text(f"{score.accuracy:.1%}" if score else "-")


def _render_pairs(first: str, second: str, found: Sequence[SplitPair], console: Console) -> None:
    title = Text.assemble((first, "bold"), " minus ", (second, "bold"))
    console.print(Rule(title.append(", on the same questions"), align="left"))
    if not found:
        console.print(Text("The two have no module with the same questions."))
    for one in found:
        console.print(Text(pair_line(one, first, second)))
        sure = [item for item in one.modules.items() if item[1].is_sure]
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 2), show_header=False)
        for name, module in sorted(sure, key=lambda item: -item[1].agreement.difference):
            difference = module.agreement.difference
            colour = "green" if difference > 0 else "red"
            table.add_row(
                name,
                Text(f"{100 * difference:+.1f}", style=colour, justify="right"),
                Text(f"p {_p(module.p_holm)}", style="dim"),
            )
        if sure:
            console.print(table)
    console.print()


def pair_line(one: SplitPair, first: str, second: str) -> str:
    """Describe the difference of two models on a split."""
    low, high = one.interval
    better = sum(m.is_sure and m.agreement.difference > 0 for m in one.modules.values())
    worse = sum(m.is_sure and m.agreement.difference < 0 for m in one.modules.values())
    left = f"; {len(one.left_out)} are excluded, whose questions differ" if one.left_out else ""
    return (
        f"{one.title}: {100 * one.difference:+.2f} points ({100 * low:+.2f} to "
        f"{100 * high:+.2f}), p {_p(one.p_holm)} by sign flips within modules, Holm-adjusted. "
        f"Of {len(one.modules)} modules, {first} is significantly better on {better}, "
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
        scores = seed_scores(group)
        seeds = ", ".join(map(str, group.seeds))
        lines += [
            f"{group.name}, {one.title}: {one.mean:.2%} on average over {one.n_seeds} seeds "
            f"({seeds}), standard deviation {100 * one.spread:.2f} points, from "
            f"{one.range[0]:.2%} to {one.range[1]:.2%}."
            for one in scores
        ] or [f"{group.name}: one seed; the variation between its seeds is unknown."]
    for other, tests in zip(others, seed_tests(first, others), strict=True):
        versus = f"{first.name} minus {other.name}"
        lines += [f"{versus}, {seed_test_line(one)}" for one in tests] or [
            f"{versus}: no test over seeds, which needs two seeds of each."
        ]
    return lines


def seed_test_line(one: SeedTest) -> str:
    """Describe the difference of two recipes on a split."""
    text = f"{one.title}: {100 * one.difference:+.2f} points"
    if one.interval is None or one.p_holm is None:
        return f"{text}; no test: the seeds do not vary, or scipy is not installed."
    low, high = one.interval
    return (
        f"{text} ({100 * low:+.2f} to {100 * high:+.2f}), p {_p(one.p_holm)} by Welch's t-test "
        f"over {one.n_seeds[0]} and {one.n_seeds[1]} seeds, Holm-adjusted."
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.4f}" if value < 0.1 else f"= {value:.2f}"


def averages_title(results: Sequence[Results]) -> str:
    """What the table of averages is called: the paper's Table 1, where that has our task."""
    return "Table 1" if is_published(results) else "Averages"


def _averages(task: Task, found: Sequence[ScoreRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for heading in ("Weights", "Steps", *averages_heads(task, longest=9)):
        table.add_column(heading, justify="right", no_wrap=True)
    source = None
    for row in found:
        if row.source != source:
            source = row.source
            table.add_row(Text(SOURCES[source], style="bold cyan"))
        cells: list[Text | str] = []
        for split in task.splits:
            cells += _terminal_cells(task, split, row.cells.get(split))
        table.add_row(Text(f"  {row.name}", overflow="fold"), row.weights, steps_of(row), *cells)
    return table


def averages_heads(task: Task, longest: int = 100) -> list[str]:
    """The headings of the splits, and of how many modules of a test split are above 95%."""
    heads = []
    for split in task.splits:
        title = task.title(split)
        heads.append(title if len(title) <= longest else f"{title[: longest - 1]}.")
        heads += [] if split == TRAIN else [">95%"]
    return heads


def above_95(split: str, cell: AverageCell | None) -> list[str]:
    """How many modules are above 95%, which is not counted for training."""
    if split == TRAIN:
        return []
    return ["-" if cell is None or cell.above_95 is None else str(cell.above_95)]


def _terminal_cells(task: Task, split: str, cell: AverageCell | None) -> list[Text | str]:
    if cell is None:
        return ["-", *above_95(split, cell)]
    text = Text(f"{cell.accuracy:.2%}")
    if cell.interval is not None:
        low, high = cell.interval
        text.append(f"\n±{(high - low) / 2:.2%}", style="dim")
    if covered := coverage(task, split, cell.n_modules):
        text.append("\n" + covered.replace(" modules", "\nmodules"), style="dim")
    return [text, *above_95(split, cell)]


def steps_of(row: ScoreRow) -> str:
    """Format the training steps of a row as in the paper."""
    if row.steps is None:
        return "-"
    return f"{row.steps // 1000}k" if row.steps >= 10_000 else f"{row.steps:,}"


def footnotes(results: Sequence[Results]) -> list[str]:
    """Return the footnotes of the averages."""
    after = f"{INTERPOLATION_AFTER_2M_STEPS:.2%} on interpolation after 2000k steps"
    return [
        "Exact match averaged over modules; ± is half of a 95% interval; >95% counts modules.",
        *([f"The paper also has {after}."] if is_published(results) else []),
        *([ONE_SEED] if all(len(one.results) == 1 for one in seed_groups(results)) else []),
        *(f"Not fully comparable: {line}." for line in caveats(results)),
    ]
