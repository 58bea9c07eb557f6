"""Runs the speed benchmarks once, and writes one dated page with their ratios and tables.

    python benchmarks/all.py STORE [--quick]

Decoding, scoring, training, generation and start-up are measured one after the other, each as its
own script does by default, but with one thread, and with `--quick` in few rounds or on few
questions, which takes about 20 minutes. A benchmark that fails is named on the page, and the exit
code is then 1. Needs the extra `bench`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import measured

HERE = Path(__file__).parent
QUICK = {
    "decode": ["--rounds", "3"],
    "evaluate": ["--sizes", "tp-transformer-small:1024", "tp-transformer:32", "--parts", "2"],
    "train": ["--sizes", "tp-transformer-small:64", "tp-transformer:64", "--batches", "2"],
    "generate": ["--rounds", "1", "--questions", "6", "--part", "paths"],
    "startup": ["--rounds", "3"],
}
WITHOUT_STORE = ("generate", "startup")


def run(name: str, store: Path, options: list[str]) -> dict[str, Any] | None:
    """Run a benchmark; return its result, or None if it failed."""
    data = [] if name in WITHOUT_STORE else [str(store)]
    command = [sys.executable, str(HERE / f"{name}.py"), *data, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if subprocess.run(command, check=False, env=environment).returncode:  # noqa: S603
        return None
    return json.loads(result_file(name, ".json").read_text("utf-8"))


def result_file(name: str, suffix: str) -> Path:
    """Return the file that a benchmark has written today."""
    return measured.RESULTS / f"{date.today().isoformat()}-{name}{suffix}"


def ratios(results: dict[str, dict[str, Any] | None]) -> list[str]:
    """Return the ratios of our models to the peers of each benchmark as rows of a table."""
    rows = []
    for case in (results["decode"] or {}).get("results", ()):
        for one in case["reached"]:
            if one["name"].startswith("ours"):
                what = f"decoding, {case['preset']}, {case['questions']} questions, {one['name']}"
                rows.append(f"| {what}, {one['precision']} | {one['times_peer']:.2f} | |")
    for name, verb in (("evaluate", "scoring"), ("train", "training")):
        for size, reached in (results[name] or {}).get("sizes", {}).items():
            for one in reached[1:]:  # the first is the peer
                what = f"{verb}, {size.partition(':')[0]}, {one['name']}, {one['precision']}"
                rows.append(f"| {what} | {one['times_peer']:.2f} | {one['share_of_peak']:.0%} |")
    times = (results["generate"] or {}).get("milliseconds", {}).values()
    if times:
        ratio = sum(one["slow"] for one in times) / sum(one["fast"] for one in times)
        rows.append(f"| generation, one question of each module | {ratio:.2f} | |")
    return rows


def main() -> None:
    """Run all benchmarks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    results = {
        name: run(name, options.store, few if options.quick else []) for name, few in QUICK.items()
    }
    failed = [name for name, result in results.items() if result is None]
    pages = [
        re.sub(r"^#", "##", result_file(name, ".md").read_text("utf-8"), flags=re.MULTILINE)
        for name in results
        if name not in failed
    ]
    head = [
        f"# Speed of all parts, {date.today().isoformat()}",
        "",
        f"{measured.described(measured.machine())}.",
        *(f"The benchmark {name} failed." for name in failed),
        "",
        "Times the speed of the peer: CTranslate2 for decoding, in the same precision or, if it",
        "does not support that, in float32; a padded `torch.nn.Transformer` in float32 for scoring",
        "and training; DeepMind's code for generation.",
        "",
        "| | times peer | of peak |",
        "|---|---:|---:|",
        *ratios(results),
        "",
    ]
    result = {"date": date.today().isoformat(), "quick": options.quick, "results": results}
    measured.write("all", result, "\n".join([*head, *pages]))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
