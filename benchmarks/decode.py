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
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from torch import nn
from train import operations, peak
from transformers import BartConfig, BartForConditionalGeneration

import tp_transformer as tpt
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import open_store
from tp_transformer.foundation import native
from tp_transformer.foundation.allocator import keep_freed_memory
from tp_transformer.model.solver import ROWS_AT_ONCE

try:
    import ctranslate2
    from ctranslate2.specs.transformer_spec import TransformerSpec
except ImportError:
    ctranslate2 = None

HUGGING_FACE = "Hugging Face BART"
PEER = "CTranslate2" if ctranslate2 else HUGGING_FACE
PEER_PRECISIONS = (
    ctranslate2.get_supported_compute_types("cpu") if ctranslate2 else {"float32", "bfloat16"}
)
# Kernels, and what they compute in `solve`.
PARTS = {
    "pack_layers": "packing",
    "pack_heads": "packing",
    "embed_forward": "encoder",
    "cells_forward": "encoder",
    "memory_forward": "keys and values",
    "decoder_greedy": "steps",
    "decoder_step": "steps",
}
BATCHES = [(8, "examples"), (32, "examples"), (1024, "tokens"), (2048, "tokens")]
COMPILED = "static cache, compiled"
LENGTHS = (41, 82, 123, 164)  # of padded sources; torch compiles a function at most eight times
FEW = 64  # questions, up to which there are more rounds, and bfloat16


@dataclass
class Contestant:
    """A model that answers questions, and its times in each round.

    `settings` has a function that answers for each setting; the fastest one is chosen.
    """

    name: str
    precision: str
    parameters: int
    settings: dict[str, Callable[[list[str]], None]]
    # Of the questions, for a warm-up and to try the settings.
    sample: Callable[[list[str]], list[str]] = lambda questions: questions[:2]
    model: Any = None  # if it is ours
    chosen: str = ""
    tried: dict[str, float] = field(default_factory=dict)  # seconds of each setting
    compilation: float | None = None  # seconds, if a setting was compiled
    seconds: list[float] = field(default_factory=list)
    kernels: dict[str, float] = field(default_factory=dict)  # seconds in all rounds, by part

    def answer(self, questions: list[str]) -> None:
        """Answer questions with the chosen setting."""
        self.settings[self.chosen](questions)

    def prepare(self, questions: list[str]) -> None:
        """Answer a sample as a warm-up, and choose the fastest setting for all."""
        self.seconds, self.tried, self.compilation = [], {}, None
        self.kernels = dict.fromkeys(PARTS.values(), 0.0)
        self.chosen = next(iter(self.settings))
        sample = self.sample(questions)
        self.answer(sample)
        if len(self.settings) == 1:
            return
        for setting, answer in self.settings.items():
            if setting == COMPILED:
                start = time.perf_counter()  # the compiler is another process
                answer(questions)
                self.compilation = time.perf_counter() - start
            times = []
            for _ in range(5 if len(sample) == 1 else 1):
                start = measured.clock()
                answer(sample)
                times.append(measured.clock() - start)
            self.tried[setting] = statistics.median(times)
        self.chosen = min(self.tried, key=lambda setting: self.tried[setting])


def ours(
    preset: str, precision: str, steps: int, beam: int, binding: str | None = None
) -> Contestant:
    """A model of this project."""
    fields = {"binding": binding, "embedding_binding": False} if binding else {}
    model = tpt.build(preset, **fields).eval().in_precision(precision)
    with torch.no_grad():  # the logit of the end token is 0, and the largest of 72 is positive
        model.embedding.symbols.weight[model.vocabulary.eos] = 0
    name = f"ours, {model.config.binding}"
    return Contestant(
        name,
        precision,
        model.n_parameters,
        {"": lambda questions: _check(model.solve(questions, max_length=steps, beam=beam), steps)},
        model=model,
    )


def _check(answers: list[str], steps: int) -> None:
    if any(len(answer) < steps for answer in answers):
        raise RuntimeError("an answer ended before its time")


def hugging_face(
    config: tpt.TransformerConfig, precision: str, steps: int, beam: int, with_compilation: bool
) -> Contestant:
    """A BART of the same size."""
    vocabulary = MATHEMATICS.vocabulary
    eager = BartForConditionalGeneration(
        BartConfig(
            vocab_size=config.n_vocab,
            max_position_embeddings=config.n_positions,
            d_model=config.d_model,
            encoder_layers=config.n_layers,
            decoder_layers=config.n_layers,
            encoder_attention_heads=config.n_heads,
            decoder_attention_heads=config.n_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            dropout=0.0,
            pad_token_id=vocabulary.pad,
            bos_token_id=vocabulary.sos,
            eos_token_id=vocabulary.eos,
            decoder_start_token_id=vocabulary.sos,
            forced_eos_token_id=None,
            attn_implementation="sdpa",
        )
    )
    eager = eager.eval().to(getattr(torch, precision))

    def answer(model: Any, questions: list[str], cache: str | None = None) -> None:
        batches = portions(questions, beam)
        for batch in batches:
            source = torch.from_numpy(vocabulary.encode(batch).padded(vocabulary.pad))
            if model is not eager and len(batches) > 1:
                length = next(length for length in LENGTHS if length >= source.shape[1])
                source = nn.functional.pad(
                    source, (0, length - source.shape[1]), value=vocabulary.pad
                )
            with torch.inference_mode():
                found = model.generate(
                    source,
                    attention_mask=(source != vocabulary.pad).long(),
                    max_new_tokens=steps,
                    min_new_tokens=steps,
                    num_beams=beam,
                    do_sample=False,
                    cache_implementation=cache,
                )
            if found.shape[1] != steps + 1:
                raise RuntimeError(f"{found.shape[1] - 1} steps instead of {steps}")

    settings = {
        "dynamic cache": lambda questions: answer(eager, questions),
        "static cache": lambda questions: answer(eager, questions, "static"),
    }
    if with_compilation:
        compiled = copy.deepcopy(eager)
        compiled.compile(dynamic=False)  # the decoder, because `generate` calls the encoder itself
        compiled.get_encoder().compile(dynamic=False)
        settings[COMPILED] = lambda questions: answer(compiled, questions, "static")
    n_parameters = sum(parameter.numel() for parameter in eager.parameters())

    def sample(questions: list[str]) -> list[str]:
        batches = portions(questions, beam)
        if len(batches) <= 4:
            return questions
        return [question for batch in batches[::-4] for question in batch]

    return Contestant(HUGGING_FACE, precision, n_parameters, settings, sample)


def ctranslate(
    config: tpt.TransformerConfig, precision: str, steps: int, beam: int, folder: Path
) -> Contestant:
    """A Transformer of the same sizes in CTranslate2, which has no roles."""
    symbols = ["<unk>", "<s>", "</s>", *MATHEMATICS.vocabulary.tokens[3:]]
    spec, n_parameters = ctranslate_model(config, len(symbols))
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    spec.validate()
    folder.mkdir()
    spec.save(str(folder))
    translator = ctranslate2.Translator(
        str(folder),
        compute_type=precision,
        inter_threads=1,
        intra_threads=torch.get_num_threads(),
    )

    def answer(questions: list[str], size: int, kind: str) -> None:
        translator.translate_batch(
            [["<s>", *question, "</s>"] for question in sorted(questions, key=len)],
            beam_size=beam,
            max_decoding_length=steps,
            min_decoding_length=steps,
            max_batch_size=size,
            batch_type=kind,
        )

    settings = {f"{size} {kind}": partial(answer, size=size, kind=kind) for size, kind in BATCHES}
    return Contestant(
        "CTranslate2", precision, n_parameters, settings, sample=lambda questions: questions[:128]
    )


def ctranslate_model(config: tpt.TransformerConfig, n_vocab: int) -> tuple[Any, int]:
    """Return random weights in the layout of CTranslate2, and their number."""
    d_model, d_ff = config.d_model, config.d_ff
    draw = np.random.default_rng(0)
    n_parameters = 0

    def fill(linear: Any, n_out: int, n_in: int, bias: bool = True) -> None:
        nonlocal n_parameters
        linear.weight = (draw.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)
        n_parameters += n_out * n_in
        if bias:
            linear.bias = np.zeros(n_out, np.float32)
            n_parameters += n_out

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(d_model, np.float32), np.zeros(d_model, np.float32)

    layers = (config.n_layers, config.n_layers)
    spec = TransformerSpec.from_config(layers, config.n_heads, pre_norm=True)
    for stack, embeddings in (
        (spec.encoder, spec.encoder.embeddings[0]),
        (spec.decoder, spec.decoder.embeddings),
    ):
        fill(embeddings, n_vocab, d_model, bias=False)
        norm(stack.layer_norm)
        for layer in stack.layer:
            attentions = [(layer.self_attention, (3, 1))]
            if stack is spec.decoder:
                attentions.append((layer.attention, (1, 2, 1)))
            for attention, widths in attentions:
                norm(attention.layer_norm)
                for linear, width in zip(attention.linear, widths, strict=True):
                    fill(linear, width * d_model, d_model)
            norm(layer.ffn.layer_norm)
            fill(layer.ffn.linear_0, d_ff, d_model)
            fill(layer.ffn.linear_1, d_model, d_ff)
    fill(spec.decoder.projection, n_vocab, d_model, bias=False)
    return spec, n_parameters


def portions(questions: list[str], beam: int) -> list[list[str]]:
    """Return the questions sorted by length, in batches of the size of `solve`."""
    ordered = sorted(questions, key=len)
    size = max(ROWS_AT_ONCE // beam, 1)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


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
    call = native.call

    def timed(name: str, *arguments: Any) -> None:
        start = measured.clock()
        call(name, *arguments)
        if name in PARTS:
            seconds[PARTS[name]] += measured.clock() - start

    native.call = timed
    try:
        yield
    finally:
        native.call = call


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
        "has_kernels": native.library() is not None,
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
