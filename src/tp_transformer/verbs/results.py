"""Verbs about results: evaluation, comparison and the report."""

import sys
from dataclasses import field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.runtime.progress import progress
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.verbs.verb import FLATTENED, ModelVerb, Verb, register_verb


@register_verb("evaluate")
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
    choice: Annotated[QuestionChoice, FLATTENED] = field(default_factory=QuestionChoice)
    work: Annotated[EvaluationOptions, FLATTENED] = field(default_factory=EvaluationOptions)

    def __call__(self) -> None:
        from tp_transformer.runtime.run_folder import seed_runs

        keep_freed_memory()
        runs = {} if self.model is None else seed_runs(self.model)
        for run in runs.values():
            predictions = self.work.predictions and _of_seed(self.work.predictions, run)
            self._score(run, _of_seed(self.out, run), replace(self.work, predictions=predictions))
        if not runs:
            self._score(self.model, self.out, self.work)

    def _score(self, model: Path | None, out: Path, work: EvaluationOptions) -> None:
        from rich.console import Console

        from tp_transformer.report.terminal import render_results
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


@register_verb("compare")
class Compare(Verb):
    """Compare results with each other and with Table 1 of the paper.

    Attributes:
        results: files of `tpt evaluate`
        format: the format of the output
        figures: a folder for bar charts of all modules, as SVG, PDF and PNG
    """

    results: tuple[Path, ...] = field(kw_only=False)
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


@register_verb("report")
class WriteReport(Verb):
    """Write one HTML page on runs, results and analyses: tables, curves, figures, findings.

    Attributes:
        paths: run folders, results of `tpt evaluate`, folders of `tpt interpret`, or folders that
            contain them
        out: the HTML file to write; an earlier report is replaced
        overwrite: replace a file that is not a report
    """

    paths: tuple[Path, ...] = field(kw_only=False)
    out: Path = Path("report.html")
    overwrite: bool = False

    def __call__(self) -> None:
        from tp_transformer.report.page import write_report

        report = write_report(self.paths, self.out, overwrite=self.overwrite)
        for file, problem in report.unreadable.items():
            print(f"tpt: {file} is not shown: {problem}", file=sys.stderr)
        sections = f"{len(report.sections)} section{'' if len(report.sections) == 1 else 's'}"
        print(f"{self.out}: {sections}; open it in a browser, it needs no network")
