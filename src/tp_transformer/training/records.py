"""Records of a run: the lines of metrics.jsonl, and their conversion to text."""

import json
import math
from pathlib import Path
from typing import Any

TRAIN, VALIDATION, MONITOR = "train", "validation", "monitor"  # kinds of records

# The required fields of each kind of record; those in _NULLABLE may be null.
_SHOWN = {
    TRAIN: (
        *("loss", "exact_match", "learning_rate", "samples_per_second", "padding", "waiting"),
        *("skipped", "elapsed", "progress", "time_left"),
    ),
    VALIDATION: ("loss", "exact_match", "n", "best"),
    MONITOR: ("loss", "exact_match", "n"),
}
_NULLABLE = ("loss", "time_left")
_LARGEST = 1e300

Record = dict[str, Any]


def as_line(record: Record) -> str:
    """Return a record as one line of text."""
    step = f"step {record['step']:,}"
    if record["kind"] != TRAIN:
        name = f"monitor of {split_of(record)}" if record["kind"] == MONITOR else VALIDATION
        best = ", the best so far" if record.get("best") else ""
        return (
            f"{step}: {name} on {record['n']:,} questions: loss "
            f"{number(record['loss'])}, exact match {share(record['exact_match'], 1)}{best}"
        )
    parts = [
        f"loss {number(record['loss'])}",
        f"exact match {share(record['exact_match'], 1)}",
        f"{record['samples_per_second']:,.0f} samples/s",
        f"padding {share(record['padding'])}",
        f"waiting {share(record['waiting'])}",
        f"learning rate {record['learning_rate']:.2g}",
    ]
    if record["skipped"]:
        parts.append(f"skipped {record['skipped']:,}")
    if record["time_left"] is not None:
        parts.append(f"{duration(record['time_left'])} left")
    return f"{step} ({share(record['progress'])}): {', '.join(parts)}"


def split_of(record: Record) -> str:
    """Return the split that a monitor record is about."""
    return str(record.get("split", "the test split"))  # older versions did not record it


def number(value: float | None) -> str:
    """Format a loss with four significant digits."""
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if value >= 0.1 else f"{value:.3g}"


def share(value: float, digits: int = 0) -> str:
    """Format a share as a percentage; only 1 is formatted as 100%."""
    almost = 1.0 - 10.0 ** -(digits + 2)
    return f"{min(value, almost) if value < 1.0 else value:.{digits}%}"


def duration(seconds: float) -> str:
    """Format a duration such as 3d 04:05:06, 4:05:06 or 5:06."""
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{seconds:02}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a run, and the number of lines that are incomplete or invalid."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    records = [record for line in lines if (record := parsed(line)) is not None]
    return records, len(lines) - len(records)


def parsed(line: str | bytes) -> Record | None:
    """Parse a line of metrics.jsonl; return None if it is not a complete record."""
    try:
        record = json.loads(line)
        json.dumps(record, allow_nan=False)  # rejects NaN and Infinity, which json.loads accepts
        names = _SHOWN[record["kind"]]
        is_whole = all(_is_shown(record[name], name in _NULLABLE) for name in names)
        is_step = type(record["step"]) is int and record["step"] >= 0
        return record if is_whole and is_step else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_shown(value: Any, is_nullable: bool) -> bool:
    if value is None:
        return is_nullable
    return isinstance(value, int | float) and abs(value) < _LARGEST
