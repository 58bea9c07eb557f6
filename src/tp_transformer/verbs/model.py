"""Verbs about models: the demo, presets, solving, bundling, import and export."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tp_transformer.errors import SettingsError
from tp_transformer.ranges import (
    AnswerLength,
    Beams,
    Device,
    LengthPenalty,
    Precision,
    Size,
)
from tp_transformer.verbs.verb import ModelVerb, Verb, complain


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """Show what the bundled models answer, their scores, and a report; needs no network.

    Attributes:
        out: the folder for all files; by default demo, or demo-train with --train
        train: train two tiny models live instead, in a few minutes, and compare them
    """

    resumes = True
    out: Path | None = None
    train: bool = False

    def __call__(self) -> None:
        if self.train:
            from tp_transformer.study.live_demo import live_demo

            live_demo(self.out or Path("demo-train"))
        else:
            from tp_transformer.study.demo import demo

            demo(self.out or Path("demo"))


@dataclass(frozen=True, kw_only=True)
class Models(Verb):
    """List all presets with their parameter counts and those of the paper, and bundled models."""

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.model import bundled
        from tp_transformer.show.presets import bundled_lines, models_table

        Console().print(models_table())
        for line in bundled_lines(bundled.FOLDER):
            print(line)


@dataclass(frozen=True, kw_only=True)
class Bundle(Verb):
    """Make the model of a run the default of the package: weights, card and scores.

    Attributes:
        run: the run, whose best model is taken, or a checkpoint of it
        twin: a second run, whose model is bundled for comparison
        data: the store with the test questions; by default that of the run
        out: a folder to write to, instead of the one in the package
        device: the device to score on
    """

    run: Path = field(metadata={"flag": "run"})
    twin: Path | None = None
    data: Path | None = None
    out: Path | None = None
    device: Device = "auto"

    def __call__(self) -> None:
        from tp_transformer.runtime.memory import keep_freed_memory
        from tp_transformer.runtime.progress import progress
        from tp_transformer.show.presets import bundled_lines
        from tp_transformer.study.bundle import bundle

        keep_freed_memory()
        folder = bundle(
            self.run,
            twin=self.twin,
            data=self.data,
            out=self.out,
            device=self.device,
            show=progress,
        )
        print(*bundled_lines(folder), sep="\n")


@dataclass(frozen=True, kw_only=True)
class Solve(ModelVerb):
    """Answer questions from the arguments, from a file, or from standard input, one per line.

    Attributes:
        questions: the questions
        file: a file with one question per line
        beam: beam size; by default 1, or the value of --n-best
        n_best: number of answers to each question
        length_penalty: log-probabilities are divided by the length to this power; 0 for no penalty
        max_length: maximum number of tokens of an answer; by default that of the task
        precision: of products. int8, for CPUs only, is the fastest there, and changes some
            answers. bfloat16 is for GPUs; float32 is used where it is not native
        json: print one JSON object per line, with scores
    """

    questions: tuple[str, ...] = field(default=(), metadata={"flag": "questions"})
    file: Path | None = None
    beam: Beams | None = None
    n_best: Beams = 1
    length_penalty: LengthPenalty = 0.0
    max_length: AnswerLength | None = None
    precision: Precision = "float32"
    json: bool = False

    def __call__(self) -> None:
        from tp_transformer.runtime.memory import keep_freed_memory, without_collection

        with without_collection():
            from tp_transformer.model.checkpoint import load
            from tp_transformer.model.solver import questions_from, solve_each
            from tp_transformer.runtime.ranks import choose_device, native_precision

        if self.questions and self.file is not None:
            raise SettingsError("the questions are either arguments or in --file, not both")
        keep_freed_memory()
        device = choose_device(self.device)
        model = load(self.model).to(device)
        model = model.in_precision(native_precision(self.precision, device))
        found = solve_each(
            model,
            questions_from(self.questions, self.file),
            noun="question" if self.questions else "line",
            is_scored=self.json or self.n_best > 1,
            beam=self.n_best if self.beam is None else self.beam,
            n_best=self.n_best,
            length_penalty=self.length_penalty,
            max_length=self.max_length,
        )
        n_bad = 0
        for asked in found:
            n_bad += asked.error is not None
            if asked.error is not None and not self.json:
                complain(asked.error)
            text = asked.as_json() if self.json else asked.as_text(several=self.n_best > 1)
            print(text, flush=True)
        if n_bad:
            raise SystemExit(2)


@dataclass(frozen=True, kw_only=True)
class ImportAuthors(Verb):
    """Convert a checkpoint of the authors of the paper to a model folder.

    Attributes:
        checkpoint: the checkpoint, a file of torch.save
        vocab: the vocabulary of the checkpoint, vocab.pt
        heads: number of attention heads, which the checkpoint does not contain
        out: the model folder to write
    """

    checkpoint: Path = field(metadata={"flag": "checkpoint"})
    vocab: Path
    heads: Size = 8
    out: Path

    def __call__(self) -> None:
        from tp_transformer.interop.authors import import_checkpoint

        model = import_checkpoint(self.checkpoint, self.vocab, n_heads=self.heads)
        model.save(self.out)
        config = model.config
        print(
            f"{self.out}: {'plain ' if config.binding == 'none' else 'TP-'}Transformer with "
            f"{config.n_layers}+{config.n_layers} layers, d_model {config.d_model}, "
            f"{len(model.vocabulary)} tokens, {model.n_parameters:,} parameters"
        )


@dataclass(frozen=True, kw_only=True)
class ExportModel(Verb):
    """Write a model for other libraries: Hugging Face transformers, or ONNX runtimes.

    Attributes:
        format: hf, a folder that transformers loads; or onnx, graphs of the encoder and of a step
            of the decoder
        out: the folder to write, which must be new or empty
        model: the folder of a model or a run, or the name of a bundled model; the bundled
            TP-Transformer by default
    """

    format: Literal["hf", "onnx"]
    out: Path
    model: Path | None = None

    def __call__(self) -> None:
        from tp_transformer.model import bundled
        from tp_transformer.model.checkpoint import load

        model = load(self.model)
        if self.format == "onnx":
            from tp_transformer.interop.onnx import export_onnx

            export_onnx(model, self.out)
        else:
            try:
                from tp_transformer.interop.hf import export_hf
                from tp_transformer.show.hub_card import hub_card, recorded
            except ImportError as error:
                raise SettingsError(
                    f"this needs transformers 5: pip install 'tp-transformer[hf]' ({error})"
                ) from error
            folder = bundled.find(self.model)
            export_hf(model, self.out, hub_card(model, folder), recorded(folder))
        print(f"{self.out}: {', '.join(sorted(file.name for file in self.out.iterdir()))}")
