"""The models of the decoding benchmark: ours, a BART of Hugging Face, and CTranslate2.

They answer the same questions in the same number of steps. Weights are random. `decode.py` says
which settings the other libraries have.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration

import tp_transformer as tpt
from tp_transformer.data.mathematics.task import MATHEMATICS
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
    eager = bart(config).eval().to(getattr(torch, precision))

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


def bart(config: tpt.TransformerConfig) -> BartForConditionalGeneration:
    """Return a BART of the same size, with random weights."""
    vocabulary = MATHEMATICS.vocabulary
    return BartForConditionalGeneration(
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
