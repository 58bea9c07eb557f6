"""Speed of single products of the C kernels, compared with `torch.nn.functional.linear` in float32.

    python benchmarks/products.py [--inputs 128 512 2048] [--rows 1 16 64 240 960] [--rounds 30]

A product is that of some rows of states with a weight and a bias that give twice as many outputs as
there are inputs, as for keys and values: by torch, by the kernels in float32 (weights as PyTorch
stores them), and by those in int8, with the fastest instructions of the processor and with AVX2;
the rounding of states to int8 is included. All take their turn in each round, on one thread;
processor time, medians. Writes a dated JSON and Markdown file.
"""

import argparse
import statistics
from collections.abc import Callable
from datetime import date
from typing import Any

import measured
import torch
from torch.nn import functional as F

from tp_transformer.foundation import native
from tp_transformer.model.fused_weights import addresses, affine
from tp_transformer.model.quantised import FASTEST, Int8Linear

AVX2 = 1  # for `Int8Linear.pack`
SECONDS = 0.01  # of repeated products, at least, in a measurement


def products(n_inputs: int, n_rows: int) -> dict[str, Callable[[], object]]:
    """Return the ways to multiply random rows by the same random weight."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(n_inputs, 2 * n_inputs).requires_grad_(False)
    state, out = torch.randn(n_rows, n_inputs), torch.empty(2, n_rows, n_inputs)
    sizes, maps = native.integers([n_rows, 1, n_inputs, 1]), addresses(affine(layer))

    def in_int8(instructions: int) -> Callable[[], object]:
        rounded = Int8Linear(layer)
        rounded.packed = rounded.pack(instructions)
        return lambda: rounded(state)

    return {
        "torch, float32": lambda: F.linear(state, layer.weight, layer.bias),
        "kernels, float32": lambda: native.call("memory_forward", sizes, maps, state, out),
        "kernels, int8": in_int8(FASTEST),
        "kernels, int8, AVX2": in_int8(AVX2),
    }


def measure(n_inputs: int, n_rows: int, rounds: int) -> dict[str, float]:
    """Return the operations per second of each way, in billions."""
    n_operations = 4 * n_rows * n_inputs**2
    repeats = max(1, round(SECONDS * 50e9 / n_operations))
    ways = products(n_inputs, n_rows)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, multiply in ways.items():
            start = measured.clock()
            for _ in range(repeats):
                multiply()
            if number:  # the first round is a warm-up
                seconds[name].append((measured.clock() - start) / repeats)
    return {name: n_operations / statistics.median(one) / 1e9 for name, one in seconds.items()}


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    names = list(result["rows"][0]["gflops"])
    lines = [
        f"# Single products, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; one thread.",
        f"Billions of operations per second, medians of {result['rounds']} rounds.",
        "",
        f"| inputs | outputs | rows | {' | '.join(names)} |",
        f"|---:|---:|---:|{'---:|' * len(names)}",
    ]
    for row in result["rows"]:
        cells = [f"{row['inputs']}", f"{2 * row['inputs']}", f"{row['rows']}"]
        cells += [f"{row['gflops'][name]:.1f}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 240, 960])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        {"inputs": inputs, "rows": n, "gflops": measure(inputs, n, options.rounds)}
        for inputs in options.inputs
        for n in options.rows
    ]
    result = {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "rounds": options.rounds,
        "rows": rows,
    }
    measured.publish("products", result, report(result))


if __name__ == "__main__":
    main()
