"""Bands: the accuracies that a scale reached on a named machine, and the comparison with them.

bands.json has only what was measured. The band of a row and split reaches from the lowest lower
bound to the highest upper bound of the 95% intervals of its seeds, in one or several reproductions:
another processor or version rounds differently, and training with the same seed then differs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from tp_transformer.data.mathematics.modules import EXTRAPOLATE, INTERPOLATE
from tp_transformer.errors import FolderError
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import Interval
from tp_transformer.training.record import duration

BANDS = "bands.json"


@dataclass(frozen=True, kw_only=True)
class SplitAccuracy:
    """The accuracies of the seeds of a row on a split, each an average over modules.

    Attributes:
        accuracies: of each seed
        band: from the lowest to the highest bound of their 95% intervals
    """

    accuracies: tuple[float, ...]
    band: Interval

    @classmethod
    def of(cls, results: Sequence[Results], split: str) -> "SplitAccuracy":
        """Return the accuracies of the results of all seeds."""
        averages = [one.splits[split].average for one in results]
        return cls(
            accuracies=tuple(accuracy for accuracy, _ in averages),
            band=(min(low for _, (low, _) in averages), max(high for _, (_, high) in averages)),
        )

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.accuracies)


Accuracies = Mapping[str, Mapping[str, SplitAccuracy]]  # by row, then by split


@dataclass(frozen=True, kw_only=True)
class Band:
    """What was measured at a scale.

    Attributes:
        date: when
        machine: on what processor, with how many cores and which versions
        seconds: the time of each stage by the clock
        processor_seconds: the processor time of each stage, which the load of the machine
            changes little
        rows: lower and upper bound by row and split
    """

    date: str
    machine: Mapping[str, Any]
    seconds: Mapping[str, float]
    processor_seconds: Mapping[str, float]
    rows: Mapping[str, Mapping[str, Interval]]

    @property
    def source(self) -> str:
        """Where and when it was measured, in one line."""
        machine = self.machine
        return f"{self.date} on {machine['processor']} ({machine['cores']} cores)"


def read_band(scale: str) -> Band | None:
    """Return the band of a scale; None if nobody has measured it."""
    values = json.loads((files(__package__) / BANDS).read_text("utf-8")).get(scale)
    return None if values is None else Band(**values)


def measured_band(outs: Sequence[Path], date: str, machine: Mapping[str, Any]) -> tuple[str, Band]:
    """Return the scale and the band of finished reproductions on the generated questions.

    The times are those of the first.
    """
    found = [_finished(out) for out in outs]
    scales = {values["scale"] for values, _ in found}
    if len(scales) != 1:
        raise FolderError(f"the reproductions have several scales: {', '.join(sorted(scales))}")
    rows = {
        row: {
            split: _span([values["rows"][row][split]["band"] for values, _ in found])
            for split in splits
        }
        for row, splits in found[0][0]["rows"].items()
    }
    return scales.pop(), Band(date=date, machine=machine, rows=rows, **found[0][1])


def _span(bands: Sequence[Interval]) -> Interval:
    """Return the smallest interval that contains all bands."""
    return min(low for low, _ in bands), max(high for _, high in bands)


def _finished(out: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the numbers of a reproduction, and its times by clock."""
    try:
        values = json.loads((out / "reproduction.json").read_text("utf-8"))
        times = json.loads((out / "times.json").read_text("utf-8"))
        clocks = {clock: times[clock] for clock in ("seconds", "processor_seconds")}
    except (OSError, ValueError, KeyError) as error:
        raise FolderError(f"{out} has no finished reproduction: {error}") from error
    if not values["generated"]:
        raise FolderError(f"{out} has a reproduction on data that were given, which has no band")
    return values, clocks


def bands_table(bands: Mapping[str, Band | None]) -> str:
    """Return the bands of scales as Markdown, as docs/reproduce.md has them."""
    heads = "| scale | row | interpolation | extrapolation | measured |"
    lines = [heads, "|---|---|---|---|---|"]
    for scale, band in bands.items():
        if band is None:
            lines.append(f"| `{scale}` | - | - | - | not measured |")
            continue
        clock, processor = (
            duration(sum(times.values())) for times in (band.seconds, band.processor_seconds)
        )
        took = f"{clock} by the clock, {processor} of one core, {band.source}"
        for row, splits in band.rows.items():
            cells = (splits.get(split) for split in (INTERPOLATE, EXTRAPOLATE))
            texts = ("-" if own is None else f"{own[0]:.1%} to {own[1]:.1%}" for own in cells)
            lines.append(f"| `{scale}` | `{row}` | {' | '.join(texts)} | {took} |")
    return "\n".join(lines) + "\n"


def compare(scale: str, band: Band | None, found: Accuracies, *, generated: bool) -> list[str]:
    """Say for each row and split whether the mean over seeds lies inside the band."""
    if not generated:
        return ["No band exists for data that were given: bands are for the generated questions."]
    if band is None:
        return [f"No band exists for the scale {scale}: nobody has recorded a measurement of it."]
    lines = []
    for row, splits in found.items():
        for split, accuracy in splits.items():
            bounds = band.rows.get(row, {}).get(split)
            if bounds is None:
                lines.append(f"{row}, {split}: {accuracy.mean:.1%}; no band exists for this row")
                continue
            low, high = bounds
            where = "inside" if low <= accuracy.mean <= high else "OUTSIDE"
            lines.append(f"{row}, {split}: {accuracy.mean:.1%}, {where} {low:.1%} to {high:.1%}")
    return [*lines, f"The band was measured {band.source}."]
