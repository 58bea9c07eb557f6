"""Decoding speed, compared with generate() of Hugging Face and with CTranslate2.

    python benchmarks/decode.py STORE [--sizes tp-transformer-small:1,64,1024 tp-transformer:1,64]
                                [--precisions float32 bfloat16 int8] [--beam 1] [--steps 16]
                                [--rounds 5] [--threads 1] [--compile]

A size is a preset and the numbers of questions in a call; by default, both sizes with 1, 64 and
1,024 questions. By default, precisions are float32, int8 and, if the processor has it, bfloat16,
which is measured with up to 64 questions.

All models answer the same random test questions in the same number of steps, because the end token
is suppressed. The models are the preset, the plain Transformer of its size, a BART of its size with
`generate()` (fused attention, inference mode) and, if installed, CTranslate2 with the same sizes.
Hugging Face has no int8. The other libraries get the questions sorted by length, and the fastest of
several settings, which are tried first: CTranslate2 batches of several sizes, on at most 128 of the
questions; Hugging Face, in batches of the same size as ours, a dynamic and a static cache, on every
fourth of more than four batches. With `--compile`, Hugging Face also has the static cache with
`torch.compile` of encoder and decoder; several batches are then padded to a few lengths, for each
of which torch compiles. This takes minutes, so it is not the default, and is not part of the times.
(`generate()` itself compiles for some other devices only, and ignores `compile_config` on a CPU.)

All models run in turn in each round, so that other processes affect them alike; the result is the
median over rounds of the ratio to CTranslate2 in the same precision, or in float32 if it does not
support the precision. For more than 64 questions, Hugging Face runs in the first round only, if it
is not itself the model compared with. With one thread, times are processor times. A second table
has the time of our parts, by kernel, and the reached speed of matrix products. Weights are random.
Needs `pip install '.[bench]'`. Writes a dated JSON and Markdown file.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from contestants import (
    HUGGING_FACE,
    PARTS,
    PEER,
    PEER_PRECISIONS,
    Contestant,
    ctranslate,
    ctranslate2,
    hugging_face,
    ours,
)
from train import operations, peak

import tp_transformer as tpt
from tp_transformer.data.store import open_store
from tp_transformer.ops import library
from tp_transformer.runtime.memory import keep_freed_memory

FEW = 64  # questions, up to which there are more rounds, and bfloat16


def race(contestants: list[Contestant], questions: list[str], rounds: int) -> None:
    """Run all models in turn, after each has chosen its setting."""
    torch.compiler.reset()  # forgets what was compiled for other numbers of questions
    for contestant in contestants:
        contestant.prepare(questions)
    for number in range(rounds):
        for contestant in contestants:
            is_first_only = len(questions) > FEW and contestant.name == HUGGING_FACE != PEER
            if number and is_first_only:
                continue
            with timed_kernels(contestant.kernels):
                start = measured.clock()
                contestant.answer(questions)
                contestant.seconds.append(measured.clock() - start)


@contextmanager
def timed_kernels(seconds: dict[str, float]) -> Iterator[None]:
    """Add the time of the kernels in the context to `seconds`, by part."""
    call = library.call

    def timed(name: str, *arguments: Any) -> None:
        start = measured.clock()
        call(name, *arguments)
        if name in PARTS:
            seconds[PARTS[name]] += measured.clock() - start

    library.call = timed
    try:
        yield
    finally:
        library.call = call


def parts_of(contestant: Contestant, questions: list[str], steps: int) -> dict[str, float]:
    """Return the seconds of a round of `solve` and of the kernels in it, by part."""
    rounds, vocabulary = len(contestant.seconds), contestant.model.vocabulary
    rows = vocabulary.encode(questions), vocabulary.encode(["0" * (steps - 1)] * len(questions))
    return {
        **{part: seconds / rounds for part, seconds in contestant.kernels.items()},
        "solve": sum(contestant.seconds) / rounds,
        "operations": operations(contestant.model, rows) / 3,  # those of a forward pass
    }


def reached(contestant: Contestant, peers: list[Contestant], n: int) -> dict[str, Any]:
    """Return the speed of a model, and its ratio to the peer in the same rounds and precision.

    Without a peer in this precision, the ratio is to the one in float32.
    """
    seconds = statistics.median(contestant.seconds)
    by_precision = {peer.precision: peer for peer in peers}
    peer = by_precision.get(contestant.precision) or by_precision["float32"]
    same_rounds = peer.seconds[: len(contestant.seconds)]
    ratios = [other / own for other, own in zip(same_rounds, contestant.seconds, strict=True)]
    return {
        "name": contestant.name,
        "precision": contestant.precision,
        "parameters": contestant.parameters,
        "milliseconds": 1000 * seconds,
        "questions_per_second": n / seconds,
        "times_peer": statistics.median(ratios),
        "least_times_peer": min(ratios),
        "rounds": len(ratios),
        "chosen": contestant.chosen,
        "tried": contestant.tried,
        "compilation": contestant.compilation,
    }


def contestants_of(preset: str, options: argparse.Namespace, folder: Path) -> list[Contestant]:
    """Return all models of a size."""
    found = []
    steps, beam = options.steps, options.beam
    for precision in options.precisions:
        config = tpt.build(preset).config
        if precision != "int8":
            found.append(hugging_face(config, precision, steps, beam, options.compile))
        found.append(ours(preset, precision, steps, beam))
        found.append(ours(preset, precision, steps, beam, binding="none"))
        if ctranslate2 and precision in PEER_PRECISIONS:
            own = folder / f"{preset}-{precision}"
            found.append(ctranslate(config, precision, steps, beam, own))
    return found


def test_questions(store: Path, n: int) -> list[str]:
    """Return random test questions."""
    split = open_store(store)["interpolate"]
    chosen = np.random.default_rng(0).choice(len(split), n, replace=False)
    return [question for row in chosen for question in split.rows([row])[0]]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes and numbers of questions."""
    sizes = [
        (preset, [int(number) for number in numbers.split(",")])
        for preset, _, numbers in (size.partition(":") for size in options.sizes)
    ]
    most = max(number for _, numbers in sizes for number in numbers)
    questions = test_questions(options.store, most)
    results, top = [], peak("float32") / 1e9
    with tempfile.TemporaryDirectory() as folder:
        # An empty cache, so that all is compiled.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "compiled")
        for preset, numbers in sizes:
            every = contestants_of(preset, options, Path(folder))
            for n in numbers:
                contestants = [one for one in every if n <= FEW or one.precision != "bfloat16"]
                peers = [one for one in contestants if one.name == PEER]
                race(contestants, questions[:n], options.rounds * (2 if n <= FEW else 1))
                rows = [reached(one, peers, n) for one in contestants]
                parts = {
                    f"{one.name}, {one.precision}": parts_of(one, questions[:n], options.steps)
                    for one in contestants
                    if one.model is not None
                }
                results.append({"preset": preset, "questions": n, "reached": rows, "parts": parts})
                print(table(results[-1], top), flush=True)
    return {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "threads": torch.get_num_threads(),
        "steps": options.steps,
        "beam": options.beam,
        "rounds": options.rounds,
        "precisions": options.precisions,
        "compile": options.compile,
        "peak_gflops": top,
        "has_kernels": library.load() is not None,
        "results": results,
    }


def table(result: dict[str, Any], top: float) -> str:
    """Return the results of a size and a number of questions as Markdown; `top` is the peak."""
    n = result["questions"]
    lines = [
        f"## {result['preset']}, {n} question{'s' if n > 1 else ''}",
        "",
        f"| model | precision | parameters | ms | questions/s | times {PEER} | at least |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for one in result["reached"]:
        lines.append(
            f"| {one['name']} | {one['precision']} | {one['parameters']:,} "
            f"| {one['milliseconds']:.1f} | {one['questions_per_second']:.1f} "
            f"| {one['times_peer']:.2f} | {one['least_times_peer']:.2f} |"
        )
    lines += ["", *(choice(one) for one in result["reached"] if one["tried"])]
    columns = [*dict.fromkeys(PARTS.values())]
    lines += [
        "",
        f"| share of | {' | '.join(columns)} | rest | GFLOPS | of peak |",
        f"|---|{'---:|' * (len(columns) + 3)}",
    ]
    for name, parts in result["parts"].items():
        whole = parts["solve"]
        kernels = [parts[part] for part in columns]
        shares = [*kernels, whole - sum(kernels)]
        numbers = " | ".join(f"{share / whole:.0%}" for share in shares)
        speed = parts["operations"] / whole / 1e9
        lines.append(f"| {name} | {numbers} | {speed:.1f} | {speed / top:.0%} |")
    return "\n".join([*lines, ""])


def choice(one: dict[str, Any]) -> str:
    """Return the times of the settings of a model as an item of a list."""
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in one["tried"].items())
    compilation = one["compilation"]
    after = "" if compilation is None else f" Compilation and first run: {compilation:.0f} s."
    return f"- {one['name']}, {one['precision']}: {one['chosen']}. Tried: {times}.{after}"


def report(result: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    absent = [precision for precision in result["precisions"] if precision not in PEER_PRECISIONS]
    fallback = ""
    if absent:
        fallback = f"{PEER} has no {' or '.join(absent)} here; these ratios are to its float32.\n"
    head = f"""# Decoding speed, {result["date"]}

{measured.described(result["machine"])}; threads: {result["threads"]}.
Peak of matrix products of torch: {result["peak_gflops"]:.0f} GFLOPS in float32. C kernels: \
{"yes" if result["has_kernels"] else "no"}.
Random test questions, {result["steps"]} forced steps each, beam {result["beam"]}, random weights;
medians of {result["rounds"]} rounds (of twice as many for up to {FEW} questions), in each of which
all take their turn; for more questions, Hugging Face runs in the first round only. Ratios are to
{PEER} in the same precision, round by round; "at least" is the worst round's.
{fallback}Below each table is the fastest setting of each other library, and what was tried:
CTranslate2 with batches of several sizes, on at most 128 questions; Hugging Face with several
caches{", also compiled," if result["compile"] else ""} on every fourth of more than four batches.
The second table of each size has the shares of the kernels in the time of `solve`; the rest is
Python, and what the kernels do not support; packing is that of the decoder and,
for several groups of questions, of the encoder. GFLOPS count all
operations of the model, also those that `solve` omits; their share is of the peak in float32.
"""
    return "\n".join([head, *(table(one, result["peak_gflops"]) for one in result["results"])])


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    sizes = ["tp-transformer-small:1,64,1024", "tp-transformer:1,64,1024"]
    parser.add_argument("--sizes", nargs="+", default=sizes)
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="try a compiled BART too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.precisions is None:
        options.precisions = [*measured.precisions(), "int8"]
    if not PEER_PRECISIONS.issuperset(options.precisions) and "float32" not in options.precisions:
        parser.error(f"{PEER} has no such precision: add float32, which is then compared with")
    keep_freed_memory()
    result = measure(options)
    name = "decode" if options.beam == 1 else f"decode-beam-{options.beam}"
    name += "-compiled" if options.compile else ""
    measured.write(name, result, report(result))


if __name__ == "__main__":
    main()
