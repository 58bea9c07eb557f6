"""Record what finished reproductions have reached on this machine as the band of their scale.

    tpt reproduce --scale minutes --out DIR
    python tools/update_bands.py DIR [DIR …]

Writes bands.json of the package, and the table of bands in docs/reproduce.md. Only a reproduction
on generated questions that ran on this machine should be recorded. Accuracies and processor time
do not depend on other load of the machine; the time by the clock does.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch

from tp_transformer.data.mathematics.modules import EXTRAPOLATE, INTERPOLATE
from tp_transformer.errors import FolderError
from tp_transformer.runtime.files import write_json
from tp_transformer.runtime.provenance import processor, versions
from tp_transformer.runtime.ranks import has_bfloat16
from tp_transformer.scoring.statistics import Interval
from tp_transformer.study.engine import read_json
from tp_transformer.study.reproduce import BANDS, REPRODUCTION, TIMES, Band, Times, read_band
from tp_transformer.study.scales import SCALES
from tp_transformer.training.record import duration

PAGE = Path(__file__).parent.parent / "docs" / "reproduce.md"


def measured_band(outs: Sequence[Path], day: str, machine: Mapping[str, Any]) -> tuple[str, Band]:
    """Return the scale and the band of finished reproductions on the generated questions.

    The times are those of the first.
    """
    finished = [read_json(out / REPRODUCTION, dict[str, Any]) for out in outs]
    times = read_json(outs[0] / TIMES, Times)
    if not all(values["generated"] for values in finished):
        raise FolderError("a reproduction on data that were given has no band")
    scale, *others = {values["scale"] for values in finished}
    if others:
        raise FolderError(f"the reproductions have several scales: {scale}, {', '.join(others)}")
    rows = {
        row: {
            split: _span([values["rows"][row][split]["band"] for values in finished])
            for split in splits
        }
        for row, splits in finished[0]["rows"].items()
    }
    return scale, Band(date=day, machine=machine, rows=rows, **times)


def _span(bands: Sequence[Interval]) -> Interval:
    """Return the smallest interval that contains all bands."""
    return min(low for low, _ in bands), max(high for _, high in bands)


def bands_table(bands: Mapping[str, Band | None]) -> str:
    """Return the bands of scales as Markdown, as docs/reproduce.md has them."""
    heads = "| scale | row | interpolation | extrapolation | measured |"
    lines = [heads, "|---|---|---|---|---|"]
    for scale, band in bands.items():
        if band is None:
            lines.append(f"| `{scale}` | - | - | - | not measured |")
            continue
        clock, core = (duration(sum(t.values())) for t in (band.seconds, band.processor_seconds))
        took = f"{clock} by the clock, {core} of one core, {band.source}"
        for row, splits in band.rows.items():
            bounds = (splits.get(split) for split in (INTERPOLATE, EXTRAPOLATE))
            texts = ("-" if each is None else f"{each[0]:.1%} to {each[1]:.1%}" for each in bounds)
            lines.append(f"| `{scale}` | `{row}` | {' | '.join(texts)} | {took} |")
    return "\n".join(lines) + "\n"


def recorded_table() -> str:
    """Return the table of all recorded bands."""
    return bands_table({scale: read_band(scale) for scale in SCALES})


def main() -> None:
    """Record the band of the reproductions in some folders."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folders", type=Path, nargs="+", help="of the reproductions; the first has the times"
    )
    machine = {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "bfloat16 in hardware": "yes" if has_bfloat16(torch.device("cpu")) else "no",
        **{name: versions()[name] for name in ("python", "torch")},
    }
    name, band = measured_band(parser.parse_args().folders, str(date.today()), machine)
    before, page = recorded_table(), PAGE.read_text("utf-8")
    if before not in page:
        raise SystemExit(f"{PAGE} does not have the table of the recorded bands")
    recorded = json.loads(BANDS.read_text("utf-8"))
    write_json(BANDS, {**recorded, name: msgspec.to_builtins(band)})
    PAGE.write_text(page.replace(before, recorded_table()), "utf-8")
    print(f"{name}: {band.source}")


if __name__ == "__main__":
    main()
