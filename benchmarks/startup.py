"""Time of a command from its start to its end, compared with that of `import torch` alone.

    python benchmarks/startup.py [--rounds 5]

The commands are started in turn, each in a new process with one thread: first with their files in
the page cache, then with an empty page cache, which is skipped where `/proc/sys/vm/drop_caches`
cannot be written (it needs root on Linux). Processor time (user and system) depends little on other
processes. Elapsed time does; without the time that the main thread was ready to run and waited for
a processor, it depends less on them. The first round, which also compiles modules to bytecode, is
not counted. Writes a dated JSON and Markdown file.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import measured
import torch

COMMANDS = {
    "`tpt --help`": ["-m", "tp_transformer", "--help"],
    "`import numpy`": ["-c", "import numpy"],
    "`import torch`": ["-c", "import torch"],
    '`tpt solve "What is 3 + 4?"`': ["-m", "tp_transformer", "solve", "What is 3 + 4?"],
}
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
SCHEDULER = Path("/proc/self/schedstat")
BLOCK = 4 * 2**20  # bytes, of sequential reading


def empty_page_cache() -> None:
    """Remove all files from the page cache; raise OSError where this is not allowed."""
    os.sync()
    DROP_CACHES.write_text("3", "utf-8")


def read_speed() -> float:
    """Return the gigabytes per second of reading the largest library of torch sequentially."""
    libraries = (Path(torch.__file__).parent / "lib").iterdir()
    largest = max(libraries, key=lambda file: file.stat().st_size)
    empty_page_cache()
    before, start = waiting(os.getpid()), time.perf_counter()
    with largest.open("rb", buffering=0) as file:
        while file.read(BLOCK):
            pass
    elapsed = time.perf_counter() - start - (waiting(os.getpid()) - before)
    return largest.stat().st_size / 1e9 / elapsed


def timed(arguments: list[str]) -> dict[str, float]:
    """Run Python with these arguments; return seconds of processor time and of elapsed time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment
    )
    if SCHEDULER.exists():
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its entry in /proc remains
    waited = waiting(process.pid)
    code = process.wait()
    elapsed, after = time.perf_counter() - start, os.times()
    if code:
        raise SystemExit(f"{arguments} failed with code {code}")
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    return {"user": user, "system": system, "elapsed": elapsed, "waiting": waited}


def waiting(pid: int) -> float:
    """Return the seconds that the main thread of a process has waited for a processor.

    Only Linux counts them; elsewhere they are 0.
    """
    if not SCHEDULER.exists():
        return 0.0
    return int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[1]) / 1e9


def measure(rounds: int, *, empty: bool) -> dict[str, list[dict[str, float]]]:
    """Run all commands in turn, each time with an empty page cache if `empty`."""
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            if empty:
                empty_page_cache()
            seconds[name].append(timed(arguments))
    return seconds


def table(seconds: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the lines of a table with a row for each command."""
    lines = [
        "| | user + system | user | system | elapsed | shortest | longest | "
        "elapsed, without waiting | longest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, runs in seconds.items():
        elapsed = [run["elapsed"] for run in runs]
        alone = [run["elapsed"] - run["waiting"] for run in runs]
        values = (
            statistics.median(run["user"] + run["system"] for run in runs),
            statistics.median(run["user"] for run in runs),
            statistics.median(run["system"] for run in runs),
            *(statistics.median(elapsed), min(elapsed), max(elapsed)),
            *(statistics.median(alone), max(alone)),
        )
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |")
    return lines


def page(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    empty = result["empty"]
    lines = [
        f"# Start-up, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; load of the machine before the measurement: "
        f"{result['load']:.1f}.",
        f"Medians of {result['rounds']} rounds, in seconds. Waiting is that of the main thread for "
        "a processor.",
        "",
        "With the files in the page cache:",
        "",
        *table(result["cached"]),
        "",
    ]
    if empty is None:
        lines.append(f"Skipped with an empty page cache: {DROP_CACHES} cannot be written.")
    else:
        lines += [
            "With an empty page cache, on a disk that reads the largest library of torch "
            f"sequentially at {result['read_speed']:.1f} GB/s:",
            "",
            *table(empty),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "load": os.getloadavg()[0],
        "rounds": options.rounds,
        "read_speed": None,
        "empty": None,
    }
    measure(1, empty=False)
    result["cached"] = measure(options.rounds, empty=False)
    try:
        result["read_speed"] = read_speed()
    except OSError:
        pass  # the page says that it was skipped
    else:
        result["empty"] = measure(options.rounds, empty=True)
    measured.publish("startup", result, page(result))


if __name__ == "__main__":
    main()
