"""Verbs about scores: evaluation and comparison."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Literal

from tp_transformer.scoring.options import Choice, Work
from tp_transformer.verbs.verb import ModelVerb, Verb


@dataclass(frozen=True, kw_only=True)
class Evaluate(ModelVerb):
    """Score a model: exact match on each module, with intervals; resumes after an interruption.

    With the folder of `tpt train --seeds` as the model, the models of all seeds are scored.

    Attributes:
        data: the store
        out: the results to write, a JSON file; of several seeds, NAME-seed-0.json and so on
    """

    resumes = True
    data: Path
    out: Path
    choice: Choice
    work: Work

    def __call__(self) -> None:
        from tp_transformer.runtime.memory import keep_freed_memory
        from tp_transformer.runtime.run_folder import seed_runs

        keep_freed_memory()
        runs = {} if self.model is None else seed_runs(self.model)
        for run in runs.values():
            predictions = self.work.predictions and _of_seed(self.work.predictions, run)
            self._score(run, _of_seed(self.out, run), replace(self.work, predictions=predictions))
        if not runs:
            self._score(self.model, self.out, self.work)

    def _score(self, model: Path | None, out: Path, work: Work) -> None:
        from rich.console import Console

        from tp_transformer.report.terminal import render_results
        from tp_transformer.runtime.progress import progress
        from tp_transformer.runtime.ranks import is_first_process
        from tp_transformer.scoring.evaluate import evaluate

        results = evaluate(
            model, self.data, out, self.choice, work, device=self.device, show=progress
        )
        if is_first_process():
            render_results(results, Console(highlight=False))
            print(f"{out}: the results; `tpt compare {quote(str(out))}` compares them with others")


def _of_seed(file: Path, run: Path) -> Path:
    """Return the file of one of several seeds, such as results-seed-0.json."""
    return file.with_stem(f"{file.stem}-{run.name}")


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

        from tp_transformer.report.comparison import Comparison
        from tp_transformer.scoring.results import Results

        results = [Results.read(file) for file in self.results]
        comparison = Comparison(*results)
        if self.format == "terminal":
            comparison.render(Console(highlight=False))
        else:
            print(getattr(comparison, f"to_{self.format}")(), end="")
        if self.figures is not None:
            from tp_transformer.report.charts import save_bars
            from tp_transformer.report.terminal import written_line

            print(written_line(save_bars(results, self.figures)), file=sys.stderr)
