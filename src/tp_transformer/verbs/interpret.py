"""`tpt interpret`: one verb for each registered analysis."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from tp_transformer.interpret.analyses import ANALYSES, Analysis, AnalysisRequest, StoreRequest
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

        from tp_transformer.interpret.run import interpret
        from tp_transformer.report.terminal import render_findings, written_line
        from tp_transformer.runtime.progress import progress, showing

        with showing(progress):
            found, files = interpret(
                self.analysis, self.request, self.options, self.out, caption=self.caption
            )
        render_findings(found, Console(highlight=False))
        print(written_line(files), file=sys.stderr)


@cache
def _verb(name: str, analysis: Analysis) -> type[Interpret]:
    """Return the verb of an analysis; it takes a store unless it generates its questions."""
    described = {"__doc__": f"{analysis.help}.", "analysis": name}
    request = StoreRequest if analysis.needs_store else AnalysisRequest
    own = [("request", request), ("options", analysis.options)]
    return make_dataclass(
        name, own, bases=(Interpret,), namespace=described, frozen=True, kw_only=True
    )


class _Verbs(Mapping[str, type[Interpret]]):
    """The verbs of all analyses, including those that are registered later."""

    def __getitem__(self, name: str) -> type[Interpret]:
        return _verb(name, ANALYSES[name])

    def __contains__(self, name: object) -> bool:
        return name in ANALYSES

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


INTERPRET = Group("The analyses of the paper, on any checkpoint", _Verbs())
