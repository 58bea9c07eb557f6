"""Record what finished reproductions have reached on this machine as the band of their scale.

    tpt reproduce --scale minutes --out DIR
    python benchmarks/reproduce.py DIR [DIR …]

Writes bands.json of the package, and the table of bands in docs/reproduce.md. Only a reproduction
on generated questions that ran on this machine should be recorded. Accuracies and processor time
do not depend on other load of the machine; the time by the clock does.
"""

import argparse
import json
from dataclasses import asdict
from datetime import date
from pathlib import Path

import measured

from tp_transformer.study.reproduce import bands
from tp_transformer.study.reproduce.scale import SCALES

ROOT = Path(__file__).parent.parent
FILE = ROOT / "src/tp_transformer/study/reproduce" / bands.BANDS
PAGE = ROOT / "docs" / "reproduce.md"


def main() -> None:
    """Record the band of the reproductions in some folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folders", type=Path, nargs="+", help="of the reproductions; the first has the times"
    )
    name, band = bands.measured_band(
        parser.parse_args().folders, str(date.today()), measured.machine()
    )
    before = bands.bands_table({scale: bands.read_band(scale) for scale in SCALES})
    page = PAGE.read_text("utf-8")
    if before not in page:
        raise SystemExit(f"{PAGE} does not have the table of the recorded bands")
    recorded = {**json.loads(FILE.read_text("utf-8")), name: asdict(band)}
    FILE.write_text(json.dumps(recorded, indent=1) + "\n", "utf-8")
    after = bands.bands_table({scale: bands.read_band(scale) for scale in SCALES})
    PAGE.write_text(page.replace(before, after), "utf-8")
    print(f"{name}: {band.source}")


if __name__ == "__main__":
    main()
