"""Training, scoring and decoding speed of two checkouts of this project, in one run.

    python benchmarks/before_after.py BEFORE [--after CHECKOUT] [--rounds 15]
        [--cases solve:tp-transformer-small:1,64,256 score:tp-transformer:16] [--name before-after]

A case is a task, a preset and numbers of questions. Tasks are solve, beam5 (answers with their
probabilities, by a search with five beams; or another number), score, train (a forward and a
backward pass of the same questions), and float32 and bfloat16: a whole training step in this
precision, with Muon and averaged weights, of other questions in each round. Each checkout runs in a
separate process, with one thread and with freed memory kept; both build the same preset from the
same seed and get the same random questions. They alternate in each round. The comparison uses
processor time, which other processes affect less than elapsed time: the ratio of the medians, the
ratio of the minima, and the median of the ratios of all rounds. The answers or losses of the two
are compared too. Writes a dated JSON and Markdown file.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
WORKER = "--worker"
BEAM = "beam"
CASES = [
    "train:tp-transformer-small:64",
    "float32:tp-transformer-small:64",
    "bfloat16:tp-transformer-small:64",
    "score:tp-transformer-small:16,64,256",
    "score:tp-transformer:1,16",
    "solve:tp-transformer-small:1,64,256",
    "solve:tp-transformer:1,16",
]
# The settings of `keep_freed_memory`, for all checkouts.
MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


def texts(seed: int, n: int, shortest: int, longest: int) -> list[str]:
    """Return random texts of random lengths."""
    chance = random.Random(seed)  # noqa: S311
    return [
        "".join(chance.choices("0123456789+- abcdef", k=chance.randint(shortest, longest)))
        for _ in range(n)
    ]


def task(name: str, preset: str) -> Callable[[int], list[Any]]:
    """Run a task on this many questions; return answers or losses."""
    import torch

    import tp_transformer as tpt
    from tp_transformer.model.solver import Solver
    from tp_transformer.scoring.verdict import judge

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = tpt.build(preset).eval()
    encode, pad = model.vocabulary.encode, model.vocabulary.pad

    def solve(n: int) -> list[Any]:
        return model.solve(texts(0, n, 10, 150))

    def best(n: int, beam: int) -> list[Any]:
        found = Solver(model).answers(texts(0, n, 10, 150), beam=beam)
        return [answers[0].text for answers in found]

    def score(n: int) -> list[Any]:
        return judge(model, encode(texts(0, n, 10, 150)), encode(texts(1, n, 1, 12))).loss.tolist()

    def train(n: int) -> list[Any]:
        model.train()
        rows = encode(texts(0, n, 10, 150)), encode(texts(1, n, 1, 12))
        batch = tpt.Batch.from_ragged(*rows, pad, model.layout_for(torch.device("cpu")))
        loss = model.loss(batch).total
        loss.backward()
        model.zero_grad()
        return [loss.item()]

    if name.startswith(BEAM):
        return partial(best, beam=int(name.removeprefix(BEAM)))
    tasks = {"solve": solve, "score": score, "train": train}
    return tasks[name] if name in tasks else training_step(model, name)


def training_step(model: Any, precision: str) -> Callable[[int], list[Any]]:
    """Return a function that trains a model on random questions, and returns the loss."""
    import torch

    from tp_transformer.training.optim import Ema, OptimConfig, clip, make_optimizer

    try:
        from tp_transformer.training.gradient import LocalBatch
    except ImportError:  # 0.2.0
        from tp_transformer.training.local_batch import LocalBatch

    model.train()
    optim = OptimConfig(optimizer="muon", learning_rate=5e-4, clip_norm=1.0)
    optimizer, average = make_optimizer(model, optim), Ema(model, 0.999)
    layout, encode = model.layout_for(torch.device("cpu")), model.vocabulary.encode
    numbers = itertools.count(1)

    def step(n: int) -> list[Any]:
        number = next(numbers)
        rows = encode(texts(number, n, 10, 150)), encode(texts(-number, n, 1, 12))
        local = LocalBatch.of(*rows, model.vocabulary.pad, 16_384, layout)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            for batch in itertools.chain.from_iterable(local.micro_batches):
                loss = model.loss(batch).total
                (loss / local.n_tokens).backward()
                total += loss.item()
        clip(model.parameters(), optim)
        optimizer.step()
        average.update(number)
        return [total]

    return step


def work(name: str, preset: str) -> None:
    """Run a task for each number of questions on standard input."""
    run = task(name, preset)
    for line in sys.stdin:
        start = time.process_time()
        found = run(int(line))
        print(json.dumps([time.process_time() - start, found]), flush=True)


class Checkout:
    """A process that runs a task with the code of a checkout."""

    def __init__(self, root: Path, name: str, preset: str) -> None:
        environment = {**os.environ, **MEMORY, "PYTHONPATH": str(root / "src")}
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, str(HERE), WORKER, name, preset],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )

    def __call__(self, n: int) -> tuple[float, list[Any]]:
        """Return the processor time for this many questions, and the answers or losses."""
        print(n, file=self.process.stdin, flush=True)
        seconds, found = json.loads(self.process.stdout.readline())
        return seconds, found

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def compare(checkouts: list[Checkout], n: int, rounds: int) -> dict[str, Any]:
    """Run both in turn; the first round is a warm-up, and compares their answers or losses."""
    (_, before), (_, after) = (checkout(n) for checkout in checkouts)
    seconds = [[checkout(n)[0] for checkout in checkouts] for _ in range(rounds)]
    olds, news = zip(*seconds, strict=True)
    return {
        "questions": n,
        "before_ms": 1000 * statistics.median(olds),
        "after_ms": 1000 * statistics.median(news),
        "ratio_of_least": min(news) / min(olds),
        "median_ratio": statistics.median(new / old for old, new in seconds),
        "agreement": agreement(before, after),
    }


def agreement(before: list[Any], after: list[Any]) -> str:
    """Describe the agreement of two lists of answers or losses."""
    if isinstance(before[0], str):
        same = sum(old == new for old, new in zip(before, after, strict=True))
        return f"{same} of {len(before)} answers equal"
    apart = max(abs(new - old) / abs(old) for old, new in zip(before, after, strict=True))
    return f"losses within {apart:.0e}"


def commit(root: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return found.stdout.strip()


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    import measured

    lines = [
        f"# Speed before and after, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; one thread.",
        f"Commit {result['after']} against {result['before']}: processor time, both in turn for",
        f"{result['rounds']} rounds. Below 1, the later commit is faster.",
        "",
        "| task | preset | questions | before (ms) | after (ms) | median ratio "
        "| ratio of least | results |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row['task']} | {row['preset']} | {row['questions']} | {row['before_ms']:.1f} "
        f"| {row['after_ms']:.1f} | {row['median_ratio']:.2f} | {row['ratio_of_least']:.2f} "
        f"| {row['agreement']} |"
        for row in result["rows"]
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print and write the results."""
    import measured

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout, e.g. from git worktree add")
    parser.add_argument("--after", type=Path, default=HERE.parents[1])
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", default="before-after", help="of the result's files")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        name, preset, numbers = case.split(":")
        checkouts = [Checkout(root, name, preset) for root in (options.before, options.after)]
        for n in map(int, numbers.split(",")):
            found = compare(checkouts, n, options.rounds)
            rows.append({"task": name, "preset": preset, **found})
            print(rows[-1], flush=True)
        for checkout in checkouts:
            checkout.close()
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "before": commit(options.before),
        "after": commit(options.after),
        "rounds": options.rounds,
        "rows": rows,
    }
    measured.write(options.name, result, report(result))


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(*sys.argv[2:])
    else:
        main()
