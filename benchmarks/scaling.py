"""How the cost of training scales: with the batch, the lengths, the model, the store, processes.

    python benchmarks/scaling.py [--parts steps store processes projection]

- steps: processor time of a training step on one thread, for a small TP-Transformer on rows of one
  length with random tokens, if one of batch size, length, depth and width is changed.
- store: opening a store of synthetic rows and assembling batches of 1024 from it, on one core.
- processes: a training step of a global batch of 256 on 1, 2 and 4 processes that average gradients
  with gloo, each with one thread. Processor time is the sum over processes; elapsed time is that of
  this machine, where processes beyond the number of its cores share them.
- projection: the paper's run on GPUs, which is computed (`benchmarks/projection.py`).

Writes a dated page, its data and a figure; a part that is measured again replaces its earlier
results of the same day.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import feed
import measured
import numpy as np
import projection
import torch
import train

import tp_transformer as tpt
from tp_transformer import figures
from tp_transformer.model.flops import training_flops
from tp_transformer.runtime.ranks import open_ranks
from tp_transformer.training.config import RunConfig
from tp_transformer.training.setup import make_loop

BASE = {"batch size": 16, "length": 40, "depth": 3, "width": 128}
VARIED = {
    "batch size": (4, 8, 16, 32, 64),
    "length": (20, 40, 80, 160),
    "depth": (1, 2, 3, 6),
    "width": (64, 128, 256, 512),
}
ANSWER = 8  # tokens of a target, with start and end token
STORE_ROWS = (100_000, 1_000_000, 10_000_000)
N_PROCESSES = (1, 2, 4)
GLOBAL_BATCH = 256
PARTS = ("steps", "store", "processes", "projection")


def measure_steps(repeats: int) -> dict[str, list[dict[str, float]]]:
    """Return the seconds and operations of a step for each value of each setting."""
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {}
    for name, values in VARIED.items():
        found[name] = [
            time_step(BASE | {name: value}, repeats) | {"value": value} for value in values
        ]
        print(name, found[name], flush=True)
    return found


def time_step(sizes: dict[str, int], repeats: int) -> dict[str, float]:
    """Return the shortest processor time of a step, and its operations."""
    width = sizes["width"]
    torch.manual_seed(0)
    model: Any = tpt.build(
        "tp-transformer-small", d_model=width, d_ff=4 * width, n_layers=sizes["depth"]
    )
    lengths = [np.full(sizes["batch size"], length) for length in (sizes["length"], ANSWER)]
    rows = projection.rows_of(*lengths, model.n_vocab)
    step = train.training_step(model, "float32")
    seconds = []
    for _ in range(repeats + 1):  # the first is a warm-up
        start = time.process_time()
        step(rows)
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds[1:]), "operations": training_flops(model, *lengths)}


def measure_stores() -> list[dict[str, float]]:
    """Return the speed of stores of several sizes."""
    found = []
    for n_rows in STORE_ROWS:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            feed.make_store(store, n_rows)
            size = (store / "train.arrow").stat().st_size
            opened, first, rate = feed.measure(store)
            found.append(
                {"rows": n_rows, "bytes": size, "open": opened, "first": first, "rate": rate}
            )
        print(found[-1], flush=True)
    return found


def measure_processes(seconds: float) -> list[dict[str, float]]:
    """Return the times of a training step on several numbers of processes."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        feed.make_store(store, 20_000)
        for n_processes in N_PROCESSES:
            out = Path(folder) / f"of-{n_processes}"
            out.mkdir()
            launcher = ["-m", "torch.distributed.run", "--standalone"]
            worker = [__file__, "--worker", str(store), str(out), "--seconds", str(seconds)]
            subprocess.run(  # noqa: S603
                [sys.executable, *launcher, f"--nproc-per-node={n_processes}", *worker],
                check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
            ranks = [json.loads(file.read_text()) for file in sorted(out.iterdir())]
            found.append(
                {
                    "processes": n_processes,
                    "elapsed": ranks[0]["elapsed"],
                    "processor": sum(rank["processor"] for rank in ranks),
                }
            )
            print(found[-1], flush=True)
    return found


def work_as_rank(store: Path, out: Path, seconds: float) -> None:
    """Take training steps as one of several processes, and write their times."""
    config = RunConfig.of("tp-transformer-small", data={"batch_size": GLOBAL_BATCH})
    with open_ranks("cpu") as ranks:
        loop = make_loop(config, tpt.data.open(store), out, ranks)
        start = time.process_time()
        elapsed = loop.measure(seconds)
        processor = (time.process_time() - start) / loop.state.step
        found = {"elapsed": elapsed, "processor": processor}
        (out / f"{ranks.rank}.json").write_text(json.dumps(found))


def report(result: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    lines = [f"# Scaling, {result['date']}", "", f"{measured.described(result['machine'])}.", ""]
    if "steps" in result:
        lines += report_steps(result["steps"])
    if "store" in result:
        lines += report_stores(result["store"])
    if "processes" in result:
        lines += report_processes(result["processes"])
    if "projection" in result:
        lines += ["## The paper's run on GPUs: computed, not measured", "", result["projection"]]
    return "\n".join(lines)


def report_steps(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the costs of a training step as Markdown."""
    fixed = ", ".join(f"{name} {value}" for name, value in BASE.items())
    lines = [
        "## A training step on one thread",
        "",
        f"`tp-transformer-small` with {fixed} (tokens of a source; a target has {ANSWER}), of "
        "which one is changed; `d_ff` is four times the width. Processor time.",
        "",
        "| changed | value | ms | relative time | relative operations | GFLOPS |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, points in found.items():
        base = next(point for point in points if point["value"] == BASE[name])
        for point in points:
            lines.append(
                f"| {name} | {point['value']:.0f} | {1e3 * point['seconds']:.0f} "
                f"| {point['seconds'] / base['seconds']:.2f} "
                f"| {point['operations'] / base['operations']:.2f} "
                f"| {point['operations'] / point['seconds'] / 1e9:.1f} |"
            )
    return [*lines, ""]


def report_stores(found: list[dict[str, float]]) -> list[str]:
    """Return the speed of stores as Markdown."""
    lines = [
        "## The size of the store",
        "",
        "Synthetic rows; batches of 1024 on one core: sampler, reading, encoding, padding. "
        "Processor time.",
        "",
        "| rows | file, MB | open, ms | to the first batch, ms | samples/s |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one['rows']:,} | {one['bytes'] / 1e6:,.0f} | {one['open']:.1f} | {one['first']:.1f} "
        f"| {one['rate']:,.0f} |"
        for one in found
    ]
    return [*lines, ""]


def report_processes(found: dict[str, Any]) -> list[str]:
    """Return the times of several processes as Markdown."""
    lines = [
        "## The number of processes",
        "",
        f"`tp-transformer-small`, a global batch of {GLOBAL_BATCH} synthetic rows, gloo, one "
        f"thread per process, {os.cpu_count()} cores. Load of the machine before the measurement: "
        f"{found['load']:.1f}; elapsed times are comparable only if it is close to 0.",
        "",
        "| processes | elapsed per step, s | processor time per step, s | relative |",
        "|---:|---:|---:|---:|",
    ]
    base = found["runs"][0]["processor"]
    lines += [
        f"| {one['processes']} | {one['elapsed']:.2f} | {one['processor']:.2f} "
        f"| {one['processor'] / base:.2f} |"
        for one in found["runs"]
    ]
    return [*lines, ""]


def draw(found: dict[str, list[dict[str, float]]], file: Path) -> None:
    """Draw the cost of a step against each setting, beside its operations."""
    from matplotlib.ticker import NullFormatter, NullLocator

    with figures.blank(figures.PAGE, 1.7) as drawn:
        axes = drawn.subplots(1, len(found), sharey=True)
        for axis, (setting, points) in zip(axes, found.items(), strict=True):
            base = next(point for point in points if point["value"] == BASE[setting])
            values = [point["value"] for point in points]
            for key, style in (("operations", "--"), ("seconds", "o-")):
                relative = [point[key] / base[key] for point in points]
                label = {"operations": "operations", "seconds": "processor time"}[key]
                colour = figures.COLOURS[key == "operations"]
                axis.plot(values, relative, style, color=colour, label=label, markersize=3)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            axis.set_xlabel(setting)
            axis.set_xticks(values, [f"{value:.0f}" for value in values])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[0].set_ylabel("relative to the base")
        axes[0].legend(loc="upper left")
        drawn.savefig(file, metadata={"Date": None})


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=3, help="steps of each size")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each number of processes")
    parser.add_argument("--worker", nargs=2, type=Path, metavar=("STORE", "OUT"))
    options = parser.parse_args()
    if options.worker:
        work_as_rank(*options.worker, options.seconds)
        return
    stem = measured.RESULTS / f"{date.today().isoformat()}-scaling"
    earlier = stem.with_suffix(".json")
    result: dict[str, Any] = json.loads(earlier.read_text()) if earlier.exists() else {}
    result |= {"date": date.today().isoformat(), "machine": measured.machine()}
    load = os.getloadavg()[0]
    if "steps" in options.parts:
        result["steps"] = measure_steps(options.repeats)
    if "store" in options.parts:
        result["store"] = measure_stores()
    if "processes" in options.parts:
        result["processes"] = {"load": load, "runs": measure_processes(options.seconds)}
    if "projection" in options.parts:
        needed = projection.work("tp-transformer", 1024)
        result["projection"] = projection.page("tp-transformer", needed, projection.PAPER_STEPS)
    measured.publish("scaling", result, report(result))
    if "steps" in result:
        draw(result["steps"], stem.with_suffix(".svg"))


if __name__ == "__main__":
    main()
