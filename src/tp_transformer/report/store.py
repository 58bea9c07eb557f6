"""The contents of a store: counts by module and split, lengths, sample questions.

`summarise` returns them as plain values, which `--json` prints and `render` shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tp_transformer.data.store import Segment, Split, Store
from tp_transformer.data.task import TRAIN, Task
from tp_transformer.errors import StoreError
from tp_transformer.table import plain_table

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDE = 110  # terminal width from which all difficulties are shown

Values = dict[str, Any]


def summarise(
    store: Store, modules: str | Iterable[str] = "*", samples: int = 2, seed: int = 0
) -> Values:
    """Return a summary of a store, or of some of its modules, as values for JSON."""
    segments = {name: split.select(modules) for name, split in store.items()}
    if not any(segments.values()):
        raise StoreError(f"{store.path} has no rows of these modules")
    return {
        "path": str(store.path),
        "task": store.task.to_json(),
        "source": store.source,
        "skipped": store.skipped,
        "splits": {name: _describe(store[name], some) for name, some in segments.items() if some},
        "samples": _draw_samples(store, segments, samples, np.random.default_rng(seed)),
    }


def _describe(split: Split, segments: Sequence[Segment]) -> Values:
    by_module: dict[str, list[Segment]] = {}
    for segment in segments:
        by_module.setdefault(segment.module, []).append(segment)
    return {
        "rows": sum(segment.count for segment in segments),
        "bytes": split.path.stat().st_size,
        "digest": split.digest,
        **_histograms(segments),
        "modules": {
            module: {
                "rows": sum(segment.count for segment in some),
                **{segment.difficulty or "unspecified": segment.count for segment in some},
                **_histograms(some),
            }
            for module, some in by_module.items()
        },
    }


def _histograms(segments: Iterable[Segment]) -> dict[str, list[int]]:
    segments = list(segments)
    return {
        "question_lengths": _total(segment.question_lengths for segment in segments),
        "answer_lengths": _total(segment.answer_lengths for segment in segments),
    }


def _total(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def _draw_samples(
    store: Store,
    segments: dict[str, tuple[Segment, ...]],
    count: int,
    generator: np.random.Generator,
) -> list[Values]:
    """Return sample rows of each area, of different modules if possible, easy ones first."""
    samples = []
    for area in store.task.areas:
        # Training first; later splits only if it has too few modules.
        first: dict[str, tuple[Split, Segment]] = {}  # of each module
        for name, some in segments.items():
            for segment in some:
                if store.task.area(segment.module) == area:
                    first.setdefault(segment.module, (store[name], segment))
        chosen = sorted(generator.permutation(len(first))[:count])
        for split, segment in (list(first.values())[number] for number in chosen):
            example = split[int(generator.integers(segment.start, segment.start + segment.count))]
            samples.append({"area": area, "split": split.name, **vars(example)})
    return samples


def render(summary: Values, console: Console) -> None:
    """Print a summary, at the width of the terminal."""
    source, task, splits = summary["source"], Task.from_json(summary["task"]), summary["splits"]
    n_bytes = sum(split["bytes"] for split in splits.values())
    heading = f"  {_size(n_bytes)}, {_origin(source)}"
    console.print(Text.assemble((summary["path"], "bold"), heading))
    sizes = (f"{name} [bold]{split['rows']:,}[/]" for name, split in splits.items())
    console.print(" · ".join(sizes), end="\n\n")
    console.print(_counts(task, splits, console.width))
    console.print(_lengths(task, splits, console.width))
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


def _counts(task: Task, splits: Values, width: int) -> RichTable:
    """Return a row for each area and module; modules that continue one are in the same row."""
    train = splits[TRAIN]["modules"].values() if TRAIN in splits else ()
    levels = [*task.difficulties, "unspecified"] if width >= _WIDE else ["rows"]
    columns = [(TRAIN, level) for level in levels if any(level in module for module in train)]
    columns += [(name, "rows") for name in task.test_splits if name in splits]
    longest, bar_width = _longest(task, splits, "question"), 32 if width >= _WIDE else 16
    table = plain_table()
    table.add_column("module", no_wrap=True)
    for split, level in columns:
        head = level if level in task.difficulties else split
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(f"lengths to {longest}", no_wrap=True)

    def cells(entries: Sequence[tuple[str, Values]]) -> list[str]:
        counts = [
            sum(entry.get(level, 0) for name, entry in entries if name == split)
            for split, level in columns
        ]
        lengths = _total(entry["question_lengths"] for _, entry in entries)
        return [*(f"{n:,}" if n else "·" for n in counts), sparkline(lengths, longest, bar_width)]

    # The counts in each split of the modules of a row, by its first module.
    rows: dict[str, list[tuple[str, Values]]] = {}
    for module in task.modules:
        first = task.continues.get(module, module)
        rows.setdefault(first, []).extend(
            (name, split["modules"][module])
            for name, split in splits.items()
            if module in split["modules"]
        )
    for area in task.areas:
        of_area = {name: rows[name] for name in rows if task.area(name) == area and rows[name]}
        if of_area and area:
            entries = [entry for some in of_area.values() for entry in some]
            table.add_row(area, *cells(entries), style="bold cyan")
        for name, entries in of_area.items():
            title = name.removeprefix(area + (task.area_separator or ""))
            table.add_row(f"  {title}", *cells(entries))
    return table


def _longest(task: Task, splits: Values, column: str) -> int:
    """Return the number of tokens of the longest text of the task, or of the store."""
    limit = task.max_question if column == "question" else task.max_answer
    return limit or max(len(split[f"{column}_lengths"]) for split in splits.values()) - 1


def sparkline(counts: Sequence[int], longest: int, width: int) -> str:
    """Return the number of texts of each length from 1 to `longest`, as a line of small bars."""
    lengths = np.arange(len(counts))
    bins = np.maximum(lengths - 1, 0) * width // longest
    sums = np.bincount(bins, weights=np.asarray(counts, float), minlength=width)[:width]
    heights = np.ceil(8 * sums / max(sums.max(), 1)).astype(int)
    return "".join(_EIGHTHS[height] for height in heights)


def _lengths(task: Task, splits: Values, width: int) -> Group:
    """Return the lengths of all questions and of all answers."""
    lines = [Text()]
    for column in ("question", "answer"):
        longest = _longest(task, splits, column)
        counts = _total(split[f"{column}_lengths"] for split in splits.values())
        bars = sparkline(counts, longest, min(longest, width - 40))
        lines.append(Text.assemble((f"{column + 's':<10}", "bold"), (bars, "green")))
        lines[-1].append(f" 1 to {longest} {task.vocabulary.tokenisation}", style="dim")
    return Group(*lines, Text())


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
