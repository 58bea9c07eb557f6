"""Training speed, compared with a padded Transformer of torch and with the peak of the machine.

    python benchmarks/train.py STORE [--sizes tp-transformer-small:256 tp-transformer:128]
                               [--precisions float32 bfloat16] [--bindings none hadamard]
                               [--batches 5] [--name train]

For each preset (with its batch size), precision (by default bfloat16 only if native) and binding,
prints samples and tokens (without padding) per second, and the share of the peak of the machine in
matrix products, which is measured in the same run. All models take one step on the same random
batch over all modules, in turn, then on the next batch, so that other processes affect them alike;
the result is the median of the ratios. A step consists of everything that training does: dividing
the batch, forward, backward, clipping, Adam.

The peer is `torch.nn.Transformer` of the same size in float32 on the padded batch; for the LSTM,
which has no bindings, it has the size of transformer-saxton. Writes a dated JSON and Markdown file.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import measured
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tp_transformer as tpt
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import Ragged
from tp_transformer.model.flops import training_flops
from tp_transformer.model.layers import sinusoids
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.training.gradient import LocalBatch
from tp_transformer.training.optim import OptimConfig, clip, make_optimizer

Rows = tuple[Ragged, Ragged]
LSTM = "lstm"  # in place of a binding
LIMIT = 16_384  # tokens of a micro-batch, as in TrainingConfig


@dataclass
class Contestant:
    """A model that takes steps, and the time of each step."""

    name: str
    precision: str
    model: nn.Module
    step: Callable[[Rows], None]
    operations: Callable[[Rows], float]  # of the matrix products of a step
    seconds: list[float] = field(default_factory=list)


class Peer(nn.Module):
    """A Transformer of torch: padded, with one embedding for input and output."""

    def __init__(self, d_model: int, d_ff: int, n_heads: int, n_layers: int, n_vocab: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(n_vocab, d_model)
        self.transformer = nn.Transformer(
            d_model, n_heads, n_layers, n_layers, d_ff, 0.0, batch_first=True, norm_first=True
        )
        self.register_buffer("positions", sinusoids(200, d_model).float(), persistent=False)

    def loss(self, source: Tensor, target: Tensor, pad: int) -> Tensor:
        """Return the mean loss of the target tokens."""
        logits = self.scores(source, target, pad)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)

    def scores(self, source: Tensor, target: Tensor, pad: int) -> Tensor:
        """Return the logits after each position of the targets but the last."""
        inputs = target[:, :-1]
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        padding = torch.zeros(source.shape).masked_fill(source == pad, -math.inf)
        hidden = self.transformer(
            self._embed(source),
            self._embed(inputs),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return hidden @ self.symbols.weight.T

    def _embed(self, ids: Tensor) -> Tensor:
        scale = math.sqrt(self.symbols.embedding_dim)
        return self.symbols(ids) * scale + self.positions[: ids.shape[1]]


def peer(preset: str) -> Contestant:
    """A Transformer of torch with the sizes of a preset."""
    preset = "transformer-saxton" if preset == "lstm-saxton" else preset
    plain = tpt.build(preset, binding="none", embedding_binding=False)
    config, pad = plain.config, plain.vocabulary.pad
    model = Peer(config.d_model, config.d_ff, config.n_heads, config.n_layers, config.n_vocab)
    optim = OptimConfig()
    optimizer = torch.optim.Adam(model.parameters(), optim.learning_rate, optim.betas)

    def step(rows: Rows) -> None:
        source, target = (torch.from_numpy(ragged.padded(pad)) for ragged in rows)
        optimizer.zero_grad()
        model.loss(source, target, pad).backward()
        nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm)
        optimizer.step()

    return Contestant(
        "torch.nn.Transformer", "float32", model, step, lambda rows: operations(plain, rows)
    )


def contestants(preset: str, options: argparse.Namespace) -> list[Contestant]:
    """Return all requested models of one size, the peer first."""
    config = tpt.build(preset).config
    bindings = options.bindings if isinstance(config, tpt.TransformerConfig) else [LSTM]
    return [peer(preset)] + [
        ours(preset, precision, binding) for precision in options.precisions for binding in bindings
    ]


def ours(preset: str, precision: str, binding: str) -> Contestant:
    """A model of this project, which takes steps like the training loop."""
    fields: dict[str, Any] = {}
    if binding != LSTM:
        fields = {"binding": binding, "embedding_binding": binding != "none"}
    if binding == "low-rank":
        config = tpt.build(preset).config
        fields["rank"] = config.d_model // config.n_heads
    model = tpt.build(preset, **fields)
    return Contestant(
        binding, precision, model, training_step(model, precision), lambda r: operations(model, r)
    )


def training_step(model: Any, precision: str) -> Callable[[Rows], None]:
    """Return a function that takes a step like the training loop, with its default settings."""
    optim = OptimConfig()
    optimizer = make_optimizer(model, optim)
    pad = model.vocabulary.pad

    def step(rows: Rows) -> None:
        local = LocalBatch.of(*rows, pad, LIMIT, model.layout_for(torch.device("cpu")))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            for batches in local.micro_batches:
                total = sum(model.loss(batch).total for batch in batches)
                (total / local.n_tokens).backward()
        clip(model.parameters(), optim)
        optimizer.step()

    return step


def operations(model: tpt.Transformer | tpt.LSTM, rows: Rows) -> float:
    """Return the operations of the matrix products of a step, including attention."""
    return training_flops(model, rows[0].lengths, rows[1].lengths)


def peak(precision: str, size: int = 2048) -> float:
    """Return the maximum number of operations per second in a product of two large matrices."""
    a, b = torch.randn(2, size, size).to(getattr(torch, precision))
    seconds = []
    for _ in range(5):
        start = measured.clock()
        a @ b
        seconds.append(measured.clock() - start)
    return 2 * size**3 / min(seconds)


def race(store: Path, batch_size: int, contestants: list[Contestant], n: int) -> list[Rows]:
    """Let all models take a step on each batch in turn; the first batch is a warm-up."""
    split = open_store(store)["train"]
    feed = Feed(split, batch_size=batch_size)
    batches = [split.tokens(feed.sampler.rows(step), feed.vocabulary) for step in range(n + 1)]
    for number, rows in enumerate(batches):
        for contestant in contestants:
            start = measured.clock()
            contestant.step(rows)
            if number:
                contestant.seconds.append(measured.clock() - start)
    return batches[1:]


def reached(
    contestant: Contestant, racing: list[Contestant], batches: list[Rows]
) -> dict[str, Any]:
    """Return the speed of a model, its ratio to the peer, and the cost of its binding."""
    total = sum(contestant.seconds)
    n_rows = sum(len(source.lengths) for source, _ in batches)
    n_symbols = sum(int(s.lengths.sum() + t.lengths.sum()) for s, t in batches) - n_rows
    plain = [one for one in racing if one.name == "none" and one.precision == contestant.precision]
    return {
        "name": contestant.name,
        "precision": contestant.precision,
        "parameters": sum(parameter.numel() for parameter in contestant.model.parameters()),
        "samples_per_second": n_rows / total,
        "symbols_per_second": n_symbols / total,
        "operations_per_second": sum(map(contestant.operations, batches)) / total,
        "times_peer": 1 / time_ratio(contestant, racing[0]),
        "times_plain": time_ratio(contestant, plain[0]) if plain else None,
    }


def time_ratio(contestant: Contestant, other: Contestant) -> float:
    """Return the ratio of the times of two models for the same batches."""
    return statistics.median(
        own / its for own, its in zip(contestant.seconds, other.seconds, strict=True)
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes."""
    precisions = {"float32", *options.precisions}
    peaks = dict.fromkeys(precisions, 0.0)
    sizes = {}
    for entry in options.sizes:
        preset, _, batch_size = entry.partition(":")
        racing = contestants(preset, options)
        # Measured repeatedly, because other processes lower it; the peak is the maximum.
        peaks = {one: max(peaks[one], peak(one)) for one in precisions}
        batches = race(options.store, int(batch_size), racing, options.batches)
        peaks = {one: max(peaks[one], peak(one)) for one in precisions}
        sizes[entry] = [reached(one, racing, batches) for one in racing]
    for one in (one for results in sizes.values() for one in results):
        one["share_of_peak"] = one.pop("operations_per_second") / peaks[one["precision"]]
    return {
        "date": date.today().isoformat(),
        "machine": measured.machine(),
        "threads": torch.get_num_threads(),
        "batches": options.batches,
        "peak_gflops": {name: value / 1e9 for name, value in peaks.items()},
        "sizes": sizes,
    }


def table(entry: str, results: list[dict[str, Any]]) -> str:
    """Return the results of a size as Markdown."""
    preset, _, batch_size = entry.partition(":")
    lines = [
        f"## {preset}, batches of {batch_size}",
        "",
        "| model | precision | parameters | samples/s | tokens/s | of peak | times torch "
        "| time over plain |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in results:
        cost = one["times_plain"] if one["name"] != "torch.nn.Transformer" else None
        lines.append(
            f"| {one['name']} | {one['precision']} | {one['parameters']:,} "
            f"| {one['samples_per_second']:.1f} | {one['symbols_per_second']:,.0f} "
            f"| {one['share_of_peak']:.0%} | {one['times_peer']:.2f} "
            f"| {'-' if cost is None else f'{cost:.2f}'} |"
        )
    return "\n".join([*lines, ""])


def report(result: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    peaks = ", ".join(
        f"{value:.0f} GFLOPS in {name}" for name, value in result["peak_gflops"].items()
    )
    head = f"""# Training speed, {result["date"]}

{measured.described(result["machine"])}; {result["threads"]} threads.
Peak of matrix products: {peaks}.
{result["batches"]} random batches over all modules, each by all in turn. "Times torch" is the
median of the ratios to `torch.nn.Transformer` of the same size, padded, in float32; "time over
plain" that of a step's time to the one without binding.
"""
    tables = [table(entry, results) for entry, results in result["sizes"].items()]
    return "\n".join([head, *tables])


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--sizes", nargs="+", default=["tp-transformer-small:256", "tp-transformer:128"]
    )
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"])
    parser.add_argument("--bindings", nargs="+", default=["none", "hadamard"])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--name", default="train", help="of the result's files")
    options = parser.parse_args()
    if options.precisions is None:
        options.precisions = measured.precisions()
    keep_freed_memory()
    result = measure(options)
    measured.publish(options.name, result, report(result))


if __name__ == "__main__":
    main()
