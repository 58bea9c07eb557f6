"""`tpt interpret`: one verb for each registered analysis."""

import sys
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from tp_transformer.interpret.analyses import (
    ANALYSES,
    Analysis,
    AnalysisOptions,
    AnalysisRequest,
    StoreRequest,
)
from tp_transformer.runtime.progress import progress, showing
from tp_transformer.verbs.verb import FLATTENED, Verb


@dataclass(frozen=True, kw_only=True)
class Interpret(Verb):
    """Base class for the verbs of analyses.

    Attributes:
        out: the folder for numbers and figures
        caption: false for figures without a caption, which is then only in the JSON file
    """

    analysis: ClassVar[str]
    request: AnalysisRequest
    out: Path
    caption: bool = True
    options: AnalysisOptions

    def __call__(self) -> None:
        from rich.console import Console

        from tp_transformer.interpret.run import interpret
        from tp_transformer.report.terminal import render_findings, written_line

        with showing(progress):
            result, files = interpret(
                self.analysis, self.request, self.options, self.out, caption=self.caption
            )
        render_findings(result, Console(highlight=False))
        print(written_line(files), file=sys.stderr)


def analysis_verbs() -> dict[str, type[Interpret]]:
    """Return the verbs of all analyses by name, including those that are registered later."""
    return {f"interpret {name}": _analysis_verb(name, ANALYSES[name]) for name in ANALYSES}


@cache
def _analysis_verb(analysis_name: str, analysis: Analysis) -> type[Interpret]:
    """Return the verb of an analysis; it takes a store unless it generates its questions."""
    request = StoreRequest if analysis.needs_store else AnalysisRequest
    options = [
        ("request", Annotated[request, FLATTENED], field(default_factory=request)),
        (
            "options",
            Annotated[analysis.options, FLATTENED],
            field(default_factory=analysis.options),
        ),
    ]
    namespace = {"__doc__": f"{analysis.help}.", "analysis": analysis_name}
    return make_dataclass(
        analysis_name, options, bases=(Interpret,), namespace=namespace, frozen=True, kw_only=True
    )
