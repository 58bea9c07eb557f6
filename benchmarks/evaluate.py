"""Scoring speed, compared with a padded Transformer of torch and with the peak of the machine.

    python benchmarks/evaluate.py STORE [--sizes tp-transformer-small:4096 tp-transformer:128]
                                  [--precisions float32 bfloat16 int8] [--parts 4]

For each preset, this number of random test questions over all modules is scored as by `tpt
evaluate`, from the store to verdicts: in float32, in int8 and, if the processor has native
bfloat16, in bfloat16 with small margins recomputed in float32. Weights are random; an untrained
model has more small margins than a trained one. The peak that int8 is compared with is that of
float32. The peer is a `torch.nn.Transformer` of the same size that scores
the same questions padded, in batches of 128, in their given order. The questions are divided into
parts; all models score a part in turn, so that other processes affect them alike. With one thread,
times are processor times. Writes a dated JSON and Markdown file.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from train import Peer, operations, peak

import tp_transformer as tpt
from tp_transformer.data.store import Split, open_store
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.scoring.evaluate import JUDGES
from tp_transformer.scoring.verdict import CPU_TOKENS, passes

PEER = "torch.nn.Transformer"
ROWS_AT_ONCE = 128  # of the peer

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Contestant:
    """A model that scores questions, and its time for each part."""

    name: str
    precision: str
    score: Callable[[Numbers], None]
    seconds: list[float] = field(default_factory=list)


def ours(model: tpt.Transformer, split: Split, precision: str) -> Contestant:
    """The scoring of `tpt evaluate`."""
    find = JUDGES[precision]

    def score(rows: Numbers) -> None:
        source, target = split.lengths(rows)
        for places in passes(source + 2, target + 2, CPU_TOKENS):
            find(model, *split.tokens(rows[places], model.vocabulary))

    return Contestant("tpt evaluate", precision, score)


def peer(model: tpt.Transformer, split: Split) -> Contestant:
    """Scoring with a padded Transformer of torch."""
    config, vocabulary = model.config, model.vocabulary
    other = Peer(config.d_model, config.d_ff, config.n_heads, config.n_layers, config.n_vocab)
    other.eval()

    def score(rows: Numbers) -> None:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            tokens = split.tokens(rows[start : start + ROWS_AT_ONCE], vocabulary)
            source, target = (torch.from_numpy(one.padded(vocabulary.pad)) for one in tokens)
            with torch.inference_mode():
                wrong = other.scores(source, target, vocabulary.pad).argmax(-1) != target[:, 1:]
                ((wrong & (target[:, 1:] != vocabulary.pad)).any(dim=1)).sum().item()

    return Contestant(PEER, "float32", score)


def measure_size(entry: str, split: Split, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all models of one size on the same questions."""
    preset, _, count = entry.partition(":")
    model = tpt.build(preset).eval()
    drawn = np.random.default_rng(0).choice(len(split), int(count), replace=False)
    rounded = model.in_precision("int8")
    racing = [peer(model, split)] + [
        ours(rounded if one == "int8" else model, split, one) for one in options.precisions
    ]
    for contestant in racing:
        contestant.score(np.sort(drawn[:32]))
    for rows in np.array_split(drawn, options.parts):
        for contestant in racing:
            start = measured.clock()
            contestant.score(rows)
            contestant.seconds.append(measured.clock() - start)
    forward = operations(model, split.tokens(np.sort(drawn), model.vocabulary)) / 3
    return [
        {
            "name": one.name,
            "precision": one.precision,
            "questions_per_second": len(drawn) / sum(one.seconds),
            "share_of_peak": forward
            / sum(one.seconds)
            / options.peaks.get(one.precision, options.peaks["float32"]),
            "times_peer": statistics.median(
                its / own for its, own in zip(racing[0].seconds, one.seconds, strict=True)
            ),
        }
        for one in racing
    ]


def table(entry: str, results: list[dict[str, Any]]) -> str:
    """Return the results of a size as Markdown."""
    preset, _, count = entry.partition(":")
    lines = [
        f"## {preset}, {count} questions",
        "",
        "| scored by | precision | questions/s | of peak | times torch |",
        "|---|---|---:|---:|---:|",
    ]
    for one in results:
        lines.append(
            f"| {one['name']} | {one['precision']} | {one['questions_per_second']:.1f} "
            f"| {one['share_of_peak']:.0%} | {one['times_peer']:.2f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--sizes", nargs="+", default=["tp-transformer-small:4096", "tp-transformer:128"]
    )
    parser.add_argument("--precisions", nargs="+", choices=list(JUDGES))
    parser.add_argument("--parts", type=int, default=4)
    options = parser.parse_args()
    options.precisions = options.precisions or [*measured.precisions(), "int8"]
    options.peaks = {one: peak(one) for one in {"float32", *options.precisions} - {"int8"}}
    keep_freed_memory()
    split = open_store(options.store)["interpolate"]
    sizes = {}
    for entry in options.sizes:
        sizes[entry] = measure_size(entry, split, options)
        print(table(entry, sizes[entry]), flush=True)
    peaks = ", ".join(f"{value / 1e9:.0f} GFLOPS in {one}" for one, value in options.peaks.items())
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "threads": torch.get_num_threads(),
        "peak_gflops": {one: value / 1e9 for one, value in options.peaks.items()},
        "sizes": sizes,
    }
    head = f"""# Speed of exact-match scoring, {result["date"]}

{measured.described(measured.machine())}; {result["threads"]} threads.
Peak of matrix products: {peaks}. Random questions over all modules, in {options.parts} parts, each
by all in turn; "times torch" is the median of the ratios to `torch.nn.Transformer` of the same
size, padded, in float32.
"""
    tables = [table(entry, results) for entry, results in sizes.items()]
    measured.write("evaluate", result, "\n".join([head, *tables]))


if __name__ == "__main__":
    main()
