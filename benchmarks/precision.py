"""The effect of the precision on loss curves, or on the answers of trained models.

    python benchmarks/precision.py STORE [--config tp-transformer-tiny] [--batch 32] [--seeds 3]
    python benchmarks/precision.py STORE --answers MODEL… [--precisions int8 bfloat16]
                                   [--count 2000] [--split interpolate]

The first trains the same runs in bfloat16, which must be native, and float32, for each seed from
the same weights and with the same batches. Two curves of one seed differ only in the precision, and
two curves of one precision only in the seed; the first difference should be smaller. Further
options, such as --model.d_model=32, are passed on.

The second compares the answers of models, such as the bundled `tp-transformer-small`, with those in
float32, by greedy search on random test questions: the share that differs, and the change in exact
match with its 95% interval. Results are written to benchmarks/results/.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any

import measured
import numpy as np

import tp_transformer as tpt
from tp_transformer import settings
from tp_transformer.data.store import open_store
from tp_transformer.runtime.ranks import choose_device, has_bfloat16
from tp_transformer.scoring.statistics import Agreement, difference_interval
from tp_transformer.training.config import RunConfig, run_config
from tp_transformer.training.run import train

PRECISIONS = ("float32", "bfloat16")
WINDOW = 20  # steps that a point of a curve averages, because losses of single batches vary

Curves = dict[str, list[list[float]]]  # precision -> seed -> loss at each step


def main() -> None:
    """Train or answer, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--config", default="tp-transformer-tiny")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--answers", nargs="+", metavar="MODEL")
    parser.add_argument("--precisions", nargs="+", default=["int8", "bfloat16"])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--split", default="interpolate")
    options, overrides = parser.parse_known_args()
    if options.answers:
        compare_answers(options)
        return
    if not has_bfloat16(choose_device(options.device)):
        parser.error("training in bfloat16 needs a processor with native bfloat16")
    if options.steps % WINDOW:
        parser.error(f"--steps must be a multiple of {WINDOW}")
    curves: Curves = {precision: [] for precision in PRECISIONS}
    seconds = dict.fromkeys(PRECISIONS, 0.0)
    for seed in range(options.seeds):
        for precision in PRECISIONS:
            start = time.perf_counter()
            curves[precision].append(losses(options, overrides, precision, seed))
            seconds[precision] += time.perf_counter() - start
            print(f"seed {seed}, {precision}: {curves[precision][-1][-1]:.4f}", flush=True)
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(options.device),
        "run": {
            "config": options.config,
            "batch": options.batch,
            "options": overrides,
            "seconds": {name: round(value) for name, value in seconds.items()},
        },
        **compare(curves),
        "curves": curves,
    }
    write(result)


def compare_answers(options: argparse.Namespace) -> None:
    """Compare the answers of models in several precisions with those in float32."""
    split = open_store(options.store)[options.split]
    count = min(options.count, len(split))
    rows = np.sort(np.random.default_rng(0).choice(len(split), count, replace=False))
    questions, answers = split.rows(rows)
    reached = []
    for name in options.answers:
        wanted = np.array(tpt.load(name).in_precision("float32").solve(questions))
        for precision in options.precisions:
            start = time.process_time()
            found = np.array(tpt.load(name).in_precision(precision).solve(questions))
            verdicts = Agreement.of(found == np.array(answers), wanted == np.array(answers))
            reached.append(
                {
                    "model": name,
                    "precision": precision,
                    "differ": int((found != wanted).sum()),
                    "verdicts": asdict(verdicts),
                    "change": verdicts.difference,
                    "interval": difference_interval([verdicts]),
                    "seconds": time.process_time() - start,
                }
            )
            print(reached[-1], flush=True)
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "split": options.split,
        "questions": count,
        "reached": reached,
    }
    measured.publish("answers", result, answers_report(result))


def answers_report(result: dict[str, Any]) -> str:
    """Return the comparison of answers as Markdown."""
    lines = [
        f"# Answers by precision, {result['date']}",
        "",
        measured.described(result["machine"]),
        "",
        f"{result['questions']:,} random questions of the split {result['split']}, greedy search. "
        "The change in exact match is that",
        "from float32 to the precision, in percentage points, with its 95% interval (Newcombe).",
        "",
        "| model | precision | answers that differ | exact match | change | interval | "
        "only float32 correct | only the other |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in result["reached"]:
        verdicts, (low, high) = one["verdicts"], one["interval"]
        n, own, other = verdicts["n"], verdicts["only_first"], verdicts["only_second"]
        lines.append(
            f"| {one['model']} | {one['precision']} | {one['differ']} ({one['differ'] / n:.1%}) "
            f"| {(verdicts['both'] + own) / n:.1%} | {100 * one['change']:+.2f} "
            f"| {100 * low:+.2f} to {100 * high:+.2f} | {other} | {own} |"
        )
    return "\n".join([*lines, ""])


def losses(
    options: argparse.Namespace, overrides: Sequence[str], precision: str, seed: int
) -> list[float]:
    """Return the loss of each window of a run."""
    values = settings.run_values(
        options.config,
        {
            "data.batch_size": str(options.batch),
            "training.steps": str(options.steps),
            "training.precision": precision,
            "training.seed": str(seed),
            "training.log_every": str(WINDOW),
            "validation.every": str(options.steps + 1),
            **dict(option.removeprefix("--").split("=", 1) for option in overrides),
        },
        RunConfig,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(run_config(values), options.store, run, device=options.device, quiet=True)
        lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [record["loss"] for record in records if record["kind"] == "train"]


def compare(curves: Curves) -> dict[str, Any]:
    """Return the distances between curves: over all steps, and over the second half."""
    n_points = len(curves["float32"][0])
    late = {name: [curve[n_points // 2 :] for curve in found] for name, found in curves.items()}
    return {
        "distance": {"all": distances(curves), "second half": distances(late)},
        "last loss": {name: mean_curve(found)[-1] for name, found in curves.items()},
        "last loss, spread over seeds": {
            name: statistics.stdev(curve[-1] for curve in found) for name, found in curves.items()
        },
    }


def distances(curves: Curves) -> dict[str, float]:
    """Return the mean distances of curves that differ in precision, and in the seed."""
    single, half = curves["float32"], curves["bfloat16"]
    return {
        "precisions": statistics.mean(map(distance, single, half)),
        "seeds": statistics.mean(distance(*pair) for pair in combinations(single, 2)),
        "means": distance(mean_curve(single), mean_curve(half)),
    }


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the mean absolute difference of two curves."""
    return statistics.mean(abs(a - b) for a, b in zip(one, other, strict=True))


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the seeds at each point."""
    return [statistics.mean(points) for points in zip(*curves, strict=True)]


def write(result: dict[str, Any]) -> None:
    """Print the result, and write it as JSON, Markdown and a figure."""
    text = report(result, f"{result['date']}-precision")
    draw(result, measured.publish("precision", result, text).with_suffix(".svg"))


def report(result: dict[str, Any], stem: str) -> str:
    """Return the result as Markdown."""
    run, last = result["run"], result["last loss"]
    spread = result["last loss, spread over seeds"]
    options = "".join(f", {option}" for option in run["options"])
    n_seeds = len(result["curves"]["float32"])
    n_steps = WINDOW * len(result["curves"]["float32"][0])
    apart = "\n".join(
        f"| {name} | {found['precisions']:.4f} | {found['seeds']:.4f} | {found['means']:.4f} |"
        for name, found in result["distance"].items()
    )
    rows = "\n".join(
        f"| {name} | {last[name]:.4f} | {spread[name]:.4f} | {run['seconds'][name]} |"
        for name in PRECISIONS
    )
    return f"""# bfloat16 against float32, {result["date"]}

{measured.described(result["machine"])}

{run["config"]}{options}, batches of {run["batch"]}, {n_steps} steps, {n_seeds} seeds.
Each point of a curve is the mean over {WINDOW} steps.

Mean distance of two loss curves: of one seed in the two precisions, of two seeds in float32, and of
the seeds' mean curves in the two precisions.

| steps | precisions | seeds | means |
|---|---:|---:|---:|
{apart}

| precision | last loss, mean | spread over seeds | seconds |
|---|---:|---:|---:|
{rows}

![The loss curves]({stem}.svg)
"""


def draw(result: dict[str, Any], file: Path) -> None:
    """Plot all curves and, below them, the effects of the precision and of the seed."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "precision"  # the same numbers give the same file
    from matplotlib import pyplot as plt

    single, half = (result["curves"][name] for name in PRECISIONS)
    steps = [WINDOW * (index + 1) for index in range(len(single[0]))]
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7, 6), height_ratios=(3, 2), layout="constrained"
    )
    for curves, style, name in ((single, "C0-", "float32"), (half, "C1--", "bfloat16")):
        for number, curve in enumerate(curves):
            above.plot(steps, curve, style, label=None if number else f"{name}, each seed")
    centre = mean_curve(single)
    for number, curve in enumerate(single):
        away = [a - b for a, b in zip(curve, centre, strict=True)]
        label = None if number else "float32: a seed minus the mean of the seeds"
        below.plot(steps, away, "C0-", label=label)
    for number, (one, other) in enumerate(zip(half, single, strict=True)):
        away = [a - b for a, b in zip(one, other, strict=True)]
        label = None if number else "bfloat16 minus float32, same seed"
        below.plot(steps, away, "C1--", label=label)
    above.set_ylabel("training loss per token")
    below.set_ylabel("difference")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
