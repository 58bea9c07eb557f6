"""Verbs about models: the demo, presets, solving, the explorer, import and export."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tp_transformer.errors import SettingsError
from tp_transformer.model import bundled
from tp_transformer.ranges import AnswerLength, Beams, LengthPenalty, Port, Precision, Size
from tp_transformer.runtime.memory import keep_freed_memory, without_collection
from tp_transformer.verbs.verb import ModelVerb, Verb, complain, register_verb


@register_verb("demo")
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
            from tp_transformer.study.demo import live_demo

            live_demo(self.out or Path("demo-train"))
        else:
            from tp_transformer.study.demo import demo

            demo(self.out or Path("demo"))


@register_verb("models")
class Models(Verb):
    """List all presets with their parameter counts and those of the paper, and bundled models."""

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.report.cards import bundled_lines, models_table

        Console().print(models_table().terminal())
        for line in bundled_lines(bundled.FOLDER):
            print(line)


@register_verb("solve")
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

    questions: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = field(
        default=(), kw_only=False
    )
    file: Path | None = None
    beam: Beams | None = None
    n_best: Beams = 1
    length_penalty: LengthPenalty = 0.0
    max_length: AnswerLength | None = None
    precision: Precision = "float32"
    json: bool = False

    def __call__(self) -> None:
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
        answers = solve_each(
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
        for answer in answers:
            n_bad += answer.error is not None
            if answer.error is not None and not self.json:
                complain(answer.error)
            text = answer.as_json() if self.json else answer.as_text(several=self.n_best > 1)
            print(text, flush=True)
        if n_bad:
            raise SystemExit(2)


@register_verb("explore")
class Explore(Verb):
    """Explore a model in the browser: its answers, attention and roles, and operations on roles.

    Attributes:
        model: the folder of a model or a run, or the name of a bundled model; the bundled
            TP-Transformer by default
        beside: a second model to compare with
        roles: roles.json of `tpt interpret roles`, with clusters and their names
        results: results of `tpt evaluate`, whose questions are shown, wrong ones first; needs
            --data
        data: a store, whose questions are offered as examples
        out: write the page to an HTML file instead of serving it; an earlier page is replaced
        overwrite: replace a file that is not such a page
        port: port of the local server; 0 for any free port
    """

    model: Path | None = None
    beside: Path | None = None
    roles: Path | None = None
    results: Path | None = None
    data: Path | None = None
    out: Path | None = None
    overwrite: bool = False
    port: Port = 8765

    def __call__(self) -> None:
        from tp_transformer.html import check_replaceable
        from tp_transformer.report.explorer.page import KIND, make_page

        if self.out is not None:
            check_replaceable(self.out, KIND, overwrite=self.overwrite)
        page = make_page(
            self.model,
            beside=self.beside,
            roles=self.roles,
            results=self.results,
            data=self.data,
        )
        if self.out is None:
            page.serve(self.port)
        else:
            page.write(self.out)
            print(f"{self.out}: open it in a browser; it needs no server and no network")


@register_verb("import-authors")
class ImportAuthors(Verb):
    """Convert a checkpoint of the authors of the paper to a model folder.

    Attributes:
        checkpoint: the checkpoint, a file of torch.save
        vocab: the vocabulary of the checkpoint, vocab.pt
        heads: number of attention heads, which the checkpoint does not contain
        out: the model folder to write
    """

    checkpoint: Path = field(kw_only=False)
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


@register_verb("export")
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
        from tp_transformer.model.checkpoint import load

        model = load(self.model)
        if self.format == "onnx":
            from tp_transformer.interop.onnx import export_onnx

            export_onnx(model, self.out)
        else:
            try:
                from tp_transformer.interop.hf import export_hf
                from tp_transformer.report.cards import hub_card, recorded
            except ImportError as error:
                raise SettingsError(
                    f"this needs transformers 5: pip install 'tp-transformer[hf]' ({error})"
                ) from error
            folder = bundled.find(self.model)
            export_hf(model, self.out, hub_card(model, folder), recorded(folder))
        print(f"{self.out}: {', '.join(sorted(file.name for file in self.out.iterdir()))}")
