"""Time of a command from its start to its end, compared with that of `import torch` alone.

    python benchmarks/startup.py [--rounds 5]

The commands are started in turn, each in a new process with one thread. Processor time (user and
system) depends little on other processes; elapsed time is that of this machine as it is. The files
are in the page cache, because the first round is not counted. Writes a dated JSON and Markdown
file.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from datetime import date
from typing import Any

import measured

COMMANDS = {
    "`tpt --help`": ["-m", "tp_transformer", "--help"],
    "`import numpy`": ["-c", "import numpy"],
    "`import torch`": ["-c", "import torch"],
    '`tpt solve "What is 3 + 4?"`': ["-m", "tp_transformer", "solve", "What is 3 + 4?"],
}


def timed(arguments: list[str]) -> dict[str, float]:
    """Run Python with these arguments; return seconds of processor time and of elapsed time."""
    before, start = os.times(), time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(  # noqa: S603
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    elapsed, after = time.perf_counter() - start, os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    return {"user": user, "system": system, "elapsed": elapsed}


def page(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# Start-up, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; load of the machine before the measurement: "
        f"{result['load']:.1f}.",
        f"Medians of {result['rounds']} rounds, in seconds; the files are in the page cache.",
        "",
        "| | user + system | user | system | elapsed | shortest elapsed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in result["seconds"].items():
        user, system, elapsed = (
            statistics.median(run[key] for run in runs) for key in ("user", "system", "elapsed")
        )
        total = statistics.median(run["user"] + run["system"] for run in runs)
        shortest = min(run["elapsed"] for run in runs)
        lines.append(
            f"| {name} | {total:.2f} | {user:.2f} | {system:.2f} | {elapsed:.2f} | {shortest:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    for number in range(options.rounds + 1):
        for name, arguments in COMMANDS.items():
            run = timed(arguments)
            if number:
                seconds[name].append(run)
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "load": load,
        "rounds": options.rounds,
        "seconds": seconds,
    }
    text = page(result)
    print(text)
    measured.write("startup", result, text)


if __name__ == "__main__":
    main()
