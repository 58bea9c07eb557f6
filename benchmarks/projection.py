"""The paper's run on 1, 8 and 64 GPUs: computed from sizes and data sheets, not measured.

    python benchmarks/projection.py [--preset tp-transformer] [--batch-size 1024] [--steps 1000000]

Operations are those of the matrix products of a step without padding
(`tp_transformer.model.flops`), for rows with uniformly distributed lengths of 10 to 120 and 1 to 12
characters. The time of a step is the largest one of three bounds, plus the time of the all-reduce:

- operations / (GPUs x peak x share), where the share of the peak that a model of this size reaches
  is assumed; the paper's own run gives the share for its GPUs and code;
- bytes moved / memory bandwidth: saved activations are written and read once, weights, gradients
  and both averages of Adam are read and written once;
- kernels x time of a launch: the local batch of a GPU is divided as in training (into packed
  micro-batches with bfloat16, into padded parts otherwise), and each part starts three kernels for
  each node of the graph of the loss, one forward and two backward. CUDA graphs would avoid it.

An all-reduce of G bytes among n GPUs moves 2 (n - 1) / n x G bytes over each link, first within a
machine, then between machines, and takes 2 (n - 1) messages with a latency each. Training overlaps
most of it with the backward pass, so that the true time is between those with and without it.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tp_transformer as tpt
from tp_transformer.data.vocabulary import Ragged
from tp_transformer.model.batch import Batch
from tp_transformer.model.flops import config_flops
from tp_transformer.model.layout import Layout, Packed, Padded
from tp_transformer.training.gradient import LocalBatch

N_GPUS = (1, 8, 64)
PER_MACHINE = 8
LATENCY = 5e-6  # seconds of a message between GPUs, or of the launch of a kernel; assumed
KERNELS = 3  # of each node of the graph; assumed
LIMIT = 16_384  # tokens of a micro-batch, as in TrainingConfig
ADAM = 4 + 4 + 4 + 4  # bytes of a parameter, its gradient and two averages, in float32
ADAM_TRAFFIC = 4 + 2 * (4 + 4 + 4)  # the gradient is read, the others are read and written
SAMPLED = 8  # rows whose saved activations are counted
PAPER_DAYS, PAPER_STEPS, PAPER_GPUS = 10, 1_000_000, 8  # section 4 of the paper


@dataclass(frozen=True)
class Gpu:
    """What the data sheet of a GPU promises, and what is assumed about it."""

    name: str
    precision: str
    peak: float  # operations per second
    share: float  # of the peak; assumed
    memory: float  # bytes per second
    link: float  # bytes per second between the GPUs of a machine, in one direction
    network: float  # bytes per second between machines, per machine and direction
    activation_bytes: int  # of a number

    @property
    def layout(self) -> type[Layout]:
        """The layout of batches: packed rows need flash attention, which has no float32."""
        return Padded if self.precision == "float32" else Packed


GPUS = (
    Gpu("P100 SXM2", "float32", 10.6e12, 0.30, 732e9, 80e9, 12.5e9, 4),
    Gpu("A100 SXM 80 GB", "bfloat16", 312e12, 0.30, 2.04e12, 300e9, 200e9, 2),
    Gpu("H100 SXM", "bfloat16", 989e12, 0.30, 3.35e12, 450e9, 400e9, 2),
)


@dataclass(frozen=True)
class Work:
    """What one training step needs.

    Attributes:
        n_parameters: of the model
        rows: sources and targets of the batch
        operations: of the matrix products, forward and backward
        activations: numbers that the forward pass saves for the backward pass
        nodes: of the graph of the loss of one padded part
    """

    n_parameters: int
    rows: tuple[Ragged, Ragged]
    operations: float
    activations: float
    nodes: int

    @property
    def batch_size(self) -> int:
        """The number of rows."""
        return len(self.rows[0].lengths)

    def divided(self, layout: type[Layout], n_gpus: int) -> list[int]:
        """Return the number of parts in each micro-batch of the local batch of a GPU."""
        local = np.arange(0, self.batch_size, n_gpus)
        rows = (ragged.take(local) for ragged in self.rows)
        return [len(parts) for parts in LocalBatch.of(*rows, 0, LIMIT, layout).micro_batches]


@dataclass(frozen=True)
class Step:
    """The computed seconds of a step, and the bytes of memory of a GPU for a micro-batch."""

    compute: float
    memory: float
    launches: float
    all_reduce: float
    bytes: float

    @property
    def shortest(self) -> float:
        """The time if the all-reduce is overlapped entirely."""
        return max(self.compute, self.memory, self.launches, self.all_reduce)

    @property
    def longest(self) -> float:
        """The time if nothing of it is overlapped."""
        return max(self.compute, self.memory, self.launches) + self.all_reduce


def lengths(n_rows: int) -> tuple[Any, Any]:
    """Return lengths of sources and targets in tokens, with start and end token."""
    chance = np.random.default_rng(0)
    return chance.integers(10, 121, n_rows) + 2, chance.integers(1, 13, n_rows) + 2


def rows_of(source: Any, target: Any, n_vocab: int = 72) -> tuple[Ragged, Ragged]:
    """Return rows of these lengths with random tokens."""
    chance = np.random.default_rng(0)
    sources, targets = (
        Ragged(chance.integers(3, n_vocab, sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
        for sizes in (source, target)
    )
    return sources, targets


def work(preset: str, batch_size: int) -> Work:
    """Count the operations of a step, and the activations and the nodes for a few rows."""
    model: Any = tpt.build(preset).double()  # excludes the C kernels, which save less than GPUs do
    source, target = lengths(batch_size)
    rows = rows_of(source, target, model.n_vocab)
    few = [ragged.between(0, SAMPLED) for ragged in rows]
    pad = model.vocabulary.pad
    saved: dict[int, int] = {parameter.data_ptr(): 0 for parameter in model.parameters()}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved.setdefault(storage.data_ptr(), storage.nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model.loss(Batch.from_ragged(*few, pad, Packed))
    n_tokens, n_counted = (
        sum(ragged.lengths.sum() for ragged in some) - len(some[0].lengths) for some in (rows, few)
    )
    return Work(
        n_parameters=model.n_parameters,
        rows=rows,
        operations=config_flops(model.config, source, target),
        activations=sum(saved.values()) * float(n_tokens / n_counted),
        nodes=n_nodes(model.loss(Batch.from_ragged(*few, pad, Padded)).total),
    )


def n_nodes(loss: torch.Tensor) -> int:
    """Return the number of nodes of the graph from which gradients are computed."""
    found, left = set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [following for following, _ in node.next_functions]
    return len(found)


def step(gpu: Gpu, needed: Work, n_gpus: int) -> Step:
    """Return the computed times of a step on some GPUs."""
    activations = needed.activations * gpu.activation_bytes / n_gpus
    states = needed.n_parameters * ADAM
    traffic = 2 * activations + needed.n_parameters * ADAM_TRAFFIC
    n_parts = needed.divided(gpu.layout, n_gpus)
    return Step(
        compute=needed.operations / (n_gpus * gpu.peak * gpu.share),
        memory=traffic / gpu.memory,
        launches=sum(n_parts) * needed.nodes * KERNELS * LATENCY,
        all_reduce=all_reduce(gpu, 4 * needed.n_parameters, n_gpus),
        bytes=activations / len(n_parts) + states,
    )


def all_reduce(gpu: Gpu, n_bytes: float, n_gpus: int) -> float:
    """Return the seconds of an all-reduce: within each machine, then between machines."""
    local = min(n_gpus, PER_MACHINE)
    n_machines = n_gpus // local
    seconds = 2 * (local - 1) * (n_bytes / local / gpu.link + LATENCY)
    return seconds + 2 * (n_machines - 1) * (n_bytes / n_machines / gpu.network + LATENCY)


def page(preset: str, needed: Work, steps: int) -> str:
    """Return the projection as Markdown."""
    tera = needed.operations / 1e12
    paper_step = PAPER_DAYS * 86_400 / PAPER_STEPS
    reached = needed.operations / paper_step / PAPER_GPUS
    lines = [
        f"`{preset}`, {needed.n_parameters:,} parameters, {steps:,} steps of {needed.batch_size:,} "
        f"rows: {tera:.1f} TFLOP per step, {tera * steps / 1e6:.1f} million TFLOP in total; "
        f"{4 * needed.n_parameters / 1e6:.0f} MB of gradients in float32; {needed.nodes:,} nodes "
        "of the graph.",
        "",
        f"The paper's run took {PAPER_DAYS} days on {PAPER_GPUS} P100: {paper_step:.2f} s per step "
        f"or {reached / 1e12:.1f} TFLOPS per GPU without padding, {reached / GPUS[0].peak:.0%} of "
        "the peak.",
        "",
        "| GPU | peak and assumed share | GPUs | matrix products, ms | memory traffic, ms "
        "| launches, ms | all-reduce, ms | step, ms | whole run | GB per GPU |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for gpu in GPUS:
        for n_gpus in N_GPUS:
            one = step(gpu, needed, n_gpus)
            bounds = (one.compute, one.memory, one.launches, one.all_reduce)
            times = " | ".join(f"{1e3 * seconds:.1f}" for seconds in bounds)
            low, high = one.shortest, one.longest
            lines.append(
                f"| {gpu.name} | {gpu.precision}, {gpu.peak / 1e12:.3g} TFLOPS x {gpu.share:.0%} "
                f"| {n_gpus} | {times} | {between(1e3 * low, 1e3 * high)} "
                f"| {duration(low * steps, high * steps)} | {one.bytes / 1e9:.1f} |"
            )
    return "\n".join(lines) + "\n"


def between(low: float, high: float) -> str:
    """Return a range of numbers, or one if both are printed alike."""
    texts = [f"{number:.1f}" for number in (low, high)]
    return " to ".join(dict.fromkeys(texts))


def duration(low: float, high: float) -> str:
    """Return a range of seconds in days, or in hours if it is shorter than two days."""
    unit, name = (86_400, "days") if high > 2 * 86_400 else (3600, "hours")
    return f"{between(low / unit, high / unit)} {name}"


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tp-transformer")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    print(page(options.preset, work(options.preset, options.batch_size), options.steps))


if __name__ == "__main__":
    main()
