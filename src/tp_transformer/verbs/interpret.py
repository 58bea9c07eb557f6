"""`tpt interpret`: one verb for each registered analysis."""

import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import ClassVar

from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest
from tp_transformer.interpret.core.options import AnalysisOptions
from tp_transformer.verbs.verb import Group, Verb


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

        from tp_transformer.foundation.progress import progress, showing
        from tp_transformer.interpret.run import interpret
        from tp_transformer.show.findings import render_findings, written_line

        with showing(progress):
            found, files = interpret(
                self.analysis, self.request, self.options, self.out, caption=self.caption
            )
        render_findings(found, Console(highlight=False))
        print(written_line(files), file=sys.stderr)


def _verb(name: str) -> type[Interpret]:
    """The verb of an analysis: `options` are those of the analysis."""
    analysis = ANALYSES[name]
    described = {"__doc__": f"{analysis.help}.", "analysis": name}
    options = [("options", analysis.options)]
    return make_dataclass(
        name, options, bases=(Interpret,), namespace=described, frozen=True, kw_only=True
    )


INTERPRET = Group("The analyses of the paper, on any checkpoint", {n: _verb(n) for n in ANALYSES})
