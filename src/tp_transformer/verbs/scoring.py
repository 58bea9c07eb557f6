"""Verbs about scores: evaluation and comparison."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tp_transformer.scoring.options import Choice, Work
from tp_transformer.verbs.verb import ModelVerb, Verb


@dataclass(frozen=True, kw_only=True)
class Evaluate(ModelVerb):
    """Score a model: exact match on each module, with intervals; resumes after an interruption.

    Attributes:
        data: the store
        out: the results to write, a JSON file
    """

    resumes = True
    data: Path
    out: Path
    choice: Choice
    work: Work

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.foundation.allocator import keep_freed_memory
        from tp_transformer.foundation.distributed import is_first_process
        from tp_transformer.foundation.progress import progress
        from tp_transformer.scoring.evaluate import evaluate
        from tp_transformer.show.table import render_results

        keep_freed_memory()
        results = evaluate(
            self.model,
            self.data,
            self.out,
            self.choice,
            self.work,
            device=self.device,
            show=progress,
        )
        if is_first_process():
            render_results(results, Console(highlight=False))
            print(f"{self.out}: the results; `tpt compare {self.out}` compares them with others")


@dataclass(frozen=True, kw_only=True)
class Compare(Verb):
    """Compare results with each other and with Table 1 of the paper.

    Attributes:
        results: files of `tpt evaluate`
        format: the format of the output
        figures: a folder for bar charts of all modules, as SVG, PDF and PNG
    """

    results: tuple[Path, ...] = field(metadata={"flag": "results"})
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    figures: Path | None = None

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.scoring.results import Results
        from tp_transformer.show import document, table

        results = [Results.read(file) for file in self.results]
        if self.format == "terminal":
            table.render_comparison(results, Console(highlight=False))
        else:
            made = {
                "markdown": document.markdown,
                "csv": document.csv_text,
                "latex": document.latex,
            }
            print(made[self.format](results), end="")
        if self.figures is not None:
            from tp_transformer.show.bars import save_bars
            from tp_transformer.show.findings import written_line

            print(written_line(save_bars(results, self.figures)), file=sys.stderr)
