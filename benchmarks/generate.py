"""Speed of generation: the replacements of this package compared with DeepMind's own code.

    python benchmarks/generate.py                # about ten minutes
    python benchmarks/generate.py --rounds 1 --questions 3

Both implementations generate the same questions in alternating blocks. The cache of sympy is
cleared before each block, so that neither benefits from the other. Then whole chunks are generated
by 1 and by 2 workers, also in turn. Results are written to benchmarks/results/.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sympy.core.cache import clear_cache

from tp_transformer.data.mathematics.deepmind import Address, generator
from tp_transformer.data.mathematics.fast import replacements
from tp_transformer.data.mathematics.modules import MODULE_NAMES, TRAIN_SPLITS
from tp_transformer.data.mathematics.produce import Chunk, generate_chunk
from tp_transformer.runtime.processes import Pool, in_order, workers

RESULTS = Path(__file__).parent / "results"
# Share of one core that other processes may use in a round that is counted.
QUIET = 0.05


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=20, help="of each module in a block")
    parser.add_argument("--chunk", type=int, default=30, help="questions in a chunk, for workers")
    parser.add_argument("--part", choices=["both", "paths", "workers"], default="both")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{date.today().isoformat()}-generate"
    # A part that is measured again replaces its earlier results of the same day.
    earlier = stem.with_suffix(".json")
    result: dict[str, Any] = json.loads(earlier.read_text()) if earlier.exists() else {}
    result |= {"date": date.today().isoformat(), "machine": machine()}
    if options.part != "workers":
        result["milliseconds"] = measure_paths(options.rounds, options.questions)
    if options.part != "paths":
        result["workers"] = measure_workers(options.rounds, options.chunk)
    text = report(result)
    print(text)
    earlier.write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)


def measure_paths(rounds: int, n_questions: int) -> dict[str, dict[str, float]]:
    """Return milliseconds per question by module and implementation: the median over rounds."""
    times: dict[str, dict[str, list[float]]] = {
        module: {"slow": [], "fast": []} for module in MODULE_NAMES
    }
    for number in range(rounds):
        for module in MODULE_NAMES:
            # The order alternates between rounds.
            for path in ("slow", "fast") if number % 2 == 0 else ("fast", "slow"):
                seconds = time_block(module, number, n_questions, fast=path == "fast")
                times[module][path].append(1000 * seconds / n_questions)
        print(f"round {number + 1} of {rounds}", flush=True)
    return {
        module: {path: statistics.median(values) for path, values in paths.items()}
        for module, paths in times.items()
    }


def time_block(module: str, number: int, n_questions: int, *, fast: bool) -> float:
    """Return seconds of processor time for questions of all three difficulties."""
    addresses = [
        Address(module=module, split=TRAIN_SPLITS[i % 3], seed=number, index=i)
        for i in range(n_questions)
    ]
    with generator().session():
        replacements().use(fast)
        clear_cache()
        start = time.process_time()
        for address in addresses:
            generator().question(address)
        return time.process_time() - start


def measure_workers(rounds: int, size: int) -> dict[str, Any]:
    """Return questions per second with 1 and 2 workers: the median over quiet rounds.

    This is elapsed time, which other processes increase. A round is counted only if other processes
    used less than a twentieth of one core.
    """
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for number in range(rounds):
        for n_workers in (1, 2) if number % 2 == 0 else (2, 1):
            start, (all_before, ours_before) = time.perf_counter(), processor_seconds()
            rate = throughput(n_workers, number, size)
            all_after, ours_after = processor_seconds()
            others = (all_after - all_before) - (ours_after - ours_before)
            share = others / (time.perf_counter() - start)
            found[n_workers].append({"others": round(share, 3), "rate": round(rate, 1)})
    quiet = {n: [run["rate"] for run in found[n] if run["others"] < QUIET] for n in found}
    result: dict[str, Any] = {"rounds": found, "quiet": [len(quiet[1]), len(quiet[2])]}
    if all(quiet.values()):
        result |= {"one": statistics.median(quiet[1]), "two": statistics.median(quiet[2])}
    return result


def processor_seconds() -> tuple[float, float]:
    """Return the processor time used so far by all processes, and by those of this benchmark."""
    ours = sum(os.times()[:4])
    if not Path("/proc/stat").exists():
        return ours, ours
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK"), ours


def throughput(n_workers: int, seed: int, size: int) -> float:
    """Return questions per second over all modules, without the start of the processes."""
    with workers(n_workers)() as pool:

        def open_pool() -> AbstractContextManager[Pool]:
            return nullcontext(pool)

        for _ in in_order(generate_chunk, mix(seed + 1000, 1), open_pool):
            pass
        start = time.perf_counter()
        n_questions = sum(len(q) for q in in_order(generate_chunk, mix(seed, size), open_pool))
        return n_questions / (time.perf_counter() - start)


def mix(seed: int, size: int) -> Iterator[Chunk]:
    """Return one chunk of each module and difficulty."""
    for module in MODULE_NAMES:
        for split in TRAIN_SPLITS:
            yield Chunk(module, split, seed, 0, size)


def machine() -> dict[str, str]:
    """Return the versions and the machine."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    libraries = {name: version(name) for name in ("mathematics_dataset", "sympy", "numpy")}
    load = f"{os.getloadavg()[0]:.1f}"
    python = platform.python_version()
    return (
        {"processor": model, "cores": str(os.cpu_count()), "load before": load}
        | {"python": python}
        | libraries
    )


def describe_workers(found: dict[str, Any]) -> str:
    """Describe the ratio of two workers to one, if the machine was quiet."""
    quiet, n_rounds = found["quiet"], len(found["rounds"][1 if 1 in found["rounds"] else "1"])
    counted = f"{quiet[0]} and {quiet[1]} of {n_rounds} rounds were quiet"
    if "one" not in found:
        return f"Two workers against one: the machine was too busy to tell ({counted})."
    one, two = found["one"], found["two"]
    return (
        f"Two workers against one: **{two / one:.2f} times** "
        f"({two:.0f} against {one:.0f} questions a second; {counted})."
    )


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [f"# Making questions, {result['date']}", ""]
    lines += ["; ".join(f"{name} {value}" for name, value in result["machine"].items()), ""]
    lines += [describe_workers(result["workers"]), ""] if "workers" in result else []
    times = result.get("milliseconds", {})
    if not times:
        return "\n".join(lines)
    slow, fast = (sum(paths[path] for paths in times.values()) for path in ("slow", "fast"))
    lines += [
        f"Over the even mix of {len(times)} modules: **{slow / fast:.2f} times** as fast as "
        f"DeepMind's code ({slow:.0f} against {fast:.0f} ms for one question of each).",
        "",
        "| module | DeepMind's, ms | ours, ms | ratio |",
        "|---|---:|---:|---:|",
    ]
    for module, paths in times.items():
        ratio = paths["slow"] / paths["fast"]
        lines.append(f"| {module} | {paths['slow']:.2f} | {paths['fast']:.2f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
