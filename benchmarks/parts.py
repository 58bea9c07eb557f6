"""Shares of products, attention and the rest in the time of the C kernels of `solve`, by sampling.

    python benchmarks/parts.py STORE [--sizes tp-transformer-small:1,64 tp-transformer:1,64]

A size is a preset and the numbers of questions in a call. Random test questions are answered in 16
steps, again and again for some seconds, in float32 and on one thread, while `perf` of Linux, which
is needed, takes samples of the function that runs. Weights are random. Needs the extra `bench`.
Writes a dated JSON and Markdown file.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import measured

SECONDS, SAMPLES_PER_SECOND = 10, 1999
# Functions of the kernels, without the suffixes of the compiler.
PARTS = {
    "products of rows with weights": ("tile_of", "edge_of", "by_panel", "by_panels", "by_columns"),
    "packing of weights": ("pack", "pack_map", "pack_weight", "pack_layer", "pack_heads_of_layer"),
    "attention": (
        *("forward_task", "multiply", "attend", "attend_self", "attend_across", "dots", "softmax"),
        *("absorbed_attention", "attend_to_source", "attend_to_states", "transpose"),
    ),
    "normalisation": ("normalise",),
}


def solve(store: Path, preset: str, n: int) -> None:
    """Answer questions for some seconds."""
    import torch
    from contestants import ours
    from decode import test_questions

    torch.set_num_threads(1)
    contestant, questions = ours(preset, "float32", steps=16, beam=1), test_questions(store, n)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        contestant.answer(questions)


def shares(store: Path, preset: str, n: int) -> dict[str, float]:
    """Return the share of each part in the samples within the kernels."""
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        own = [sys.executable, __file__, str(store), "--solve", f"{preset}:{n}"]
        record = ["perf", "record", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "-o", data]
        subprocess.run([*record, "--", *own], check=True, capture_output=True)  # noqa: S603
        script = ["perf", "script", "-i", data, "-F", "ip,sym,dso"]
        found = subprocess.run(script, check=True, capture_output=True, text=True)  # noqa: S603
    counts: Counter[str] = Counter()
    for line in found.stdout.splitlines():
        fields = line.split(maxsplit=2)  # address, function, library
        if len(fields) == 3 and "kernels-" in fields[2]:
            name = fields[1].partition(".")[0]
            counts[next((part for part, names in PARTS.items() if name in names), "other")] += 1
    return {part: counts[part] / counts.total() for part in (*PARTS, "other")}


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    sizes = result["shares"]
    lines = [
        f"# Parts of the kernels of `solve`, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; float32, one thread.",
        "Shares of the samples that `perf` took within the C kernels.",
        "",
        f"| | {' | '.join(sizes)} |",
        f"|---|{'---:|' * len(sizes)}",
    ]
    for part in (*PARTS, "other"):
        lines.append(f"| {part} | {' | '.join(f'{found[part]:.1%}' for found in sizes.values())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--sizes", nargs="+", default=["tp-transformer-small:1,64", "tp-transformer:1,64"]
    )
    parser.add_argument("--solve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.solve:
        preset, _, number = options.solve.partition(":")
        solve(options.store, preset, int(number))
        return
    found = {}
    for preset, _, numbers in (size.partition(":") for size in options.sizes):
        for number in map(int, numbers.split(",")):
            plural = "s" if number > 1 else ""
            name = f"{preset}, {number} question{plural}"
            found[name] = shares(options.store, preset, number)
    result = {"date": date.today().isoformat(), "machine": measured.machine(), "shares": found}
    measured.publish("parts", result, report(result))


if __name__ == "__main__":
    main()
