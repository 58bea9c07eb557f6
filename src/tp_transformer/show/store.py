"""The contents of a store: counts by module and split, lengths, sample questions.

`summarise` returns them as plain values, which `--json` prints and `render` shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tp_transformer.data.store import Segment, Split, Store
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import StoreError

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDE = 110  # terminal width from which all difficulties are shown
_N_BINS = 16  # of a histogram, at most

Values = dict[str, Any]


def summarise(
    store: Store, modules: str | Iterable[str] = "*", samples: int = 2, seed: int = 0
) -> Values:
    """Return a summary of a store, or of some of its modules, as values for JSON."""
    chosen = {name: (split, split.select(modules)) for name, split in store.items()}
    if not any(segments for _, segments in chosen.values()):
        raise StoreError(f"{store.path} has no rows of these modules")
    return {
        "path": str(store.path),
        "task": store.task.to_json(),
        "source": store.source,
        "skipped": store.skipped,
        "splits": {name: _describe(*found) for name, found in chosen.items() if found[1]},
        "samples": _draw_samples(store.task, chosen, samples, np.random.default_rng(seed)),
    }


def _describe(split: Split, segments: Sequence[Segment]) -> Values:
    modules: dict[str, Values] = {}
    for segment in segments:
        entry = modules.setdefault(segment.module, {"rows": 0})
        entry["rows"] += segment.count
        entry[segment.difficulty or "unspecified"] = segment.count
        for column, counts in _histograms([segment]).items():
            entry[column] = _add(entry.get(column, []), counts)
    return {
        "rows": sum(segment.count for segment in segments),
        "bytes": split.path.stat().st_size,
        "digest": split.digest,
        **_histograms(segments),
        "modules": modules,
    }


def _histograms(segments: Iterable[Segment]) -> dict[str, list[int]]:
    totals: dict[str, list[int]] = {"question_lengths": [], "answer_lengths": []}
    for segment in segments:
        totals["question_lengths"] = _add(totals["question_lengths"], segment.question_lengths)
        totals["answer_lengths"] = _add(totals["answer_lengths"], segment.answer_lengths)
    return totals


def _add(some: Sequence[int], more: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip_longest(some, more, fillvalue=0)]


def _draw_samples(
    task: Task,
    chosen: dict[str, tuple[Split, tuple[Segment, ...]]],
    count: int,
    chance: np.random.Generator,
) -> list[Values]:
    """Return sample rows of each area, of different modules if possible, easy ones first."""
    found = []
    for area in task.areas:
        of_area = [
            (split, segment)
            for split, segments in chosen.values()
            for segment in segments
            if task.area(segment.module) == area
        ]
        # Training first; later splits only if it has too few modules.
        modules = list(dict.fromkeys(segment.module for _, segment in of_area))
        picked = sorted(chance.permutation(len(modules))[:count])
        for module in (modules[i] for i in picked):
            split, segment = next(pair for pair in of_area if pair[1].module == module)
            example = split[int(chance.integers(segment.start, segment.start + segment.count))]
            found.append({"area": area, "split": split.name, **vars(example)})
    return found


def render(summary: Values, console: Console) -> None:
    """Print a summary, at the width of the terminal."""
    source, task = summary["source"], Task.from_json(summary["task"])
    sizes = " · ".join(
        f"{name} [bold]{split['rows']:,}[/]" for name, split in summary["splits"].items()
    )
    n_bytes = sum(split["bytes"] for split in summary["splits"].values())
    heading = f"  {_size(n_bytes)}, {_origin(source)}"
    console.print(Text.assemble((summary["path"], "bold"), heading))
    console.print(sizes, end="\n\n")
    console.print(_counts(task, summary["splits"], console.width))
    console.print(_lengths(task, summary["splits"], console.width))
    console.print(_questions(summary["samples"]))
    for line in [*generated_lines(source), *skipped_lines(summary["skipped"])]:
        console.print(Text(line, style="yellow"))


def _size(n_bytes: int) -> str:
    kibibytes = n_bytes / 2**10
    return f"{kibibytes / 2**10:,.1f} MiB" if kibibytes >= 2**10 else f"{kibibytes:,.0f} KiB"


def _origin(source: Values) -> str:
    """Return the origin of the rows of a store."""
    if "task" in source and "name" not in source:  # not from a file
        return f"{source['kind']} by task {source['task']}"
    origin = ", ".join(str(source[key]) for key in ("kind", "name") if key in source)
    return f"from {origin}" if "seed" not in source else f"{origin} with seed {source['seed']}"


def skipped_lines(skipped: Sequence[Mapping[str, Any]], most: int = 20) -> list[str]:
    """Return what was skipped when the store was written, a line for each file and reason."""
    lines = []
    for entry in skipped[:most]:
        at = f", first at line {entry['first_line']:,}" if entry["first_line"] else ""
        rows = "left out" if not entry["rows"] else f"{entry['rows']:,} rows left out"
        lines.append(f"{rows}: {entry['file']}: {entry['reason']}{at}")
    if len(skipped) > most:
        lines.append(f"… and {len(skipped) - most:,} more, all in store.json")
    return lines


def generated_lines(source: Values) -> list[str]:
    """Return notes on the generation of a store: redraws, remaining overlap, repetitions."""
    lines = []
    for name, what in (
        ("redrawn", "test questions occurred in training and were redrawn"),
        ("still_in_training", "test questions occur in training, even after redraws"),
        ("training_repeats", "training questions repeat an earlier one, as in the published data"),
    ):
        counts: dict[str, int] = source.get(name, {})
        if counts:
            most = sorted(counts, key=lambda file: -counts[file])[:3]
            examples = ", ".join(f"{file} {counts[file]:,}" for file in most)
            more = ", …" if len(counts) > len(most) else ""
            lines.append(f"{sum(counts.values()):,} {what} ({examples}{more})")
    return lines


def _counts(task: Task, splits: Values, width: int) -> Table:
    """Return a row for each area and module; modules that continue one are in the same row."""
    train = [*task.difficulties, "unspecified"] if width >= _WIDE else ["rows"]
    train = [key for key in train if any(key in m for m in _modules(splits, TRAIN).values())]
    columns = [(TRAIN, key) for key in train]
    columns += [(name, "rows") for name in task.test_splits if name in splits]
    longest, bar_width = _longest(task, splits, "question"), 32 if width >= _WIDE else 16
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("module", no_wrap=True)
    for split, key in columns:
        table.add_column(key if key in task.difficulties else split, justify="right", no_wrap=True)
    table.add_column(f"lengths to {longest}", no_wrap=True)
    rows: dict[str, list[str]] = {}  # the module of a row, and the modules that continue it
    for name in task.modules:
        rows.setdefault(task.continues.get(name, name), []).append(name)
    for area in task.areas:
        own = {
            name: entries
            for name, names in rows.items()
            if task.area(name) == area and (entries := _entries(splits, names))
        }
        if own and area:
            entries = [entry for entries in own.values() for entry in entries]
            cells = _row(entries, columns, longest, bar_width)
            table.add_row(area, *cells, style="bold cyan")
        for name, entries in own.items():
            title = f"  {name.removeprefix(area + (task.area_separator or ''))}"
            table.add_row(title, *_row(entries, columns, longest, bar_width))
    return table


def _entries(splits: Values, names: Sequence[str]) -> list[tuple[str, Values]]:
    """Return the counts of some modules in each split."""
    return [
        (split, _modules(splits, split)[name])
        for split in splits
        for name in names
        if name in _modules(splits, split)
    ]


def _row(
    entries: Sequence[tuple[str, Values]],
    columns: Sequence[tuple[str, str]],
    longest: int,
    width: int,
) -> list[str]:
    counts = [
        sum(entry.get(key, 0) for of_split, entry in entries if of_split == split)
        for split, key in columns
    ]
    lengths: list[int] = []
    for _, entry in entries:
        lengths = _add(lengths, entry["question_lengths"])
    cells = [f"{count:,}" if count else "·" for count in counts]
    return [*cells, sparkline(lengths, longest, width)]


def _longest(task: Task, splits: Values, column: str) -> int:
    """Return the number of tokens of the longest text of the task, or of the store."""
    limit = task.max_question if column == "question" else task.max_answer
    return limit or max(len(split[f"{column}_lengths"]) for split in splits.values()) - 1


def _modules(splits: Values, name: str) -> Values:
    return splits[name]["modules"] if name in splits else {}


def sparkline(counts: Sequence[int], longest: int, width: int) -> str:
    """Return the number of texts of each length, as a line of small bars."""
    bins = binned(counts, longest, width)
    heights = np.ceil(8 * bins / max(bins.max(), 1)).astype(int)
    return "".join(_EIGHTHS[height] for height in heights)


def binned(counts: Sequence[int], longest: int, n_bins: int) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the counts of the lengths 1 to `longest`, summed in bins of equal width."""
    lengths = np.arange(len(counts))
    places = np.maximum(lengths - 1, 0) * n_bins // longest
    return np.bincount(places, weights=np.asarray(counts, float), minlength=n_bins)[:n_bins]


def _lengths(task: Task, splits: Values, width: int) -> Group:
    """Return the histograms of questions and answers of all splits, side by side."""
    bar = (width - 2) // 2 - 18
    tables = []
    for column in ("question", "answer"):
        longest = _longest(task, splits, column)
        step = -(-longest // _N_BINS)
        n_bins = -(-longest // step)
        counts: list[int] = []
        for split in splits.values():
            counts = _add(counts, split[f"{column}_lengths"])
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(f"{column}s", justify="right", no_wrap=True)
        table.add_column(f"{task.vocabulary.tokenisation} long", width=bar, no_wrap=True)
        table.add_column("", justify="right")
        bins = binned(counts, n_bins * step, n_bins)
        for i, value in enumerate(bins):
            cells = horizontal_bar(value / max(bins.max(), 1), bar)
            share = f"{value / max(bins.sum(), 1):.1%}"
            ends = f"{i * step + 1}-{(i + 1) * step}" if step > 1 else str(i + 1)
            table.add_row(ends, Text(cells, style="green"), share)
        tables.append(table)
    return Group(Text(), Columns(tables, padding=(0, 1)), Text())


def horizontal_bar(share: float, width: int) -> str:
    """Return a bar of a share of the width, to an eighth of a column."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8] * (eighths % 8 > 0)


def _questions(samples: Sequence[Values]) -> Group:
    lines: list[Text | Padding] = []
    area = None
    for sample in samples:
        if sample["area"] and sample["area"] != area:
            area = sample["area"]
            lines.append(Text(area, style="bold cyan"))
        text = Text(sample["question"])
        text.append(" → ", style="dim")
        text.append(sample["answer"], style="bold green")
        lines.append(Padding(text, (0, 0, 0, 2), expand=False))
    return Group(*lines)
