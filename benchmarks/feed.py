"""Speed of training batches from a store, and of opening a store.

    python benchmarks/feed.py [rows ...]        (default: 1,000,000 and 10,000,000)

Writes stores of synthetic rows with the average lengths of the published data, and assembles
batches of 1024 on one core: the sampler selects rows, the store returns their tokens, and the batch
is divided into padded parts. Neither the speed nor the time to open a store should depend on the
number of rows.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tp_transformer.data.mathematics.modules import DIFFICULTIES, MODULE_NAMES
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import CHARACTERS
from tp_transformer.data.writer import write_store

BATCH = 1024


def texts(chance: np.random.Generator, count: int, shortest: int, longest: int) -> pa.StringArray:
    """Return random texts of random lengths."""
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(chance.integers(shortest, longest + 1, count), out=offsets[1:])
    characters = np.frombuffer(CHARACTERS.encode(), np.uint8)
    data = characters[chance.integers(0, len(characters), offsets[-1], dtype=np.uint8)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def make_store(folder: Path, n_rows: int) -> None:
    """Write a training split of this many rows, divided evenly among modules and difficulties."""
    chance = np.random.default_rng(0)
    keys = [(module, difficulty) for module in MODULE_NAMES for difficulty in DIFFICULTIES]
    counts = np.diff(np.linspace(0, n_rows, len(keys) + 1).astype(int))
    with write_store(folder, MATHEMATICS, {"kind": "synthetic"}) as writer:
        for (module, difficulty), count in zip(keys, counts, strict=True):
            questions, answers = texts(chance, count, 10, 120), texts(chance, count, 1, 12)
            writer.append("train", module, difficulty, questions, answers)


def measure(folder: Path, seconds: float = 5.0) -> tuple[float, float, float]:
    """Return milliseconds to open and to the first batch, and samples per second.

    All are processor time, which other processes affect less.
    """
    vocabulary = MATHEMATICS.vocabulary
    opened, first = [], []
    for _ in range(5):
        start = time.process_time()
        split = open_store(folder)["train"]
        opened.append(time.process_time() - start)
        split.tokens(np.arange(BATCH), vocabulary)
        first.append(time.process_time() - start)
    feed = Feed(split, batch_size=BATCH)
    rates = []
    step = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        for _ in range(50):
            feed.tokens(step)
            step += 1
        rates.append(50 * BATCH / (time.process_time() - start))
    return 1e3 * min(opened), 1e3 * min(first), statistics.median(rates)


def main(sizes: list[int]) -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    print(f"{'rows':>12} {'file':>9} {'open':>9} {'1st batch':>10} {'samples/s':>12}")
    for n_rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            make_store(store, n_rows)
            size = (store / "train.arrow").stat().st_size / 2**20
            opened, first, rate = measure(store)
            print(f"{n_rows:12,} {size:6,.0f} MB {opened:6.1f} ms {first:7.1f} ms {rate:12,.0f}")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [1_000_000, 10_000_000])
