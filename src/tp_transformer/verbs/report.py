"""`tpt report`: what was trained, scored and analysed, on one page."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tp_transformer.verbs.verb import Verb


@dataclass(frozen=True, kw_only=True)
class WriteReport(Verb):
    """Write one HTML page on runs, results and analyses: tables, curves, figures, findings.

    Attributes:
        paths: run folders, results of `tpt evaluate`, folders of `tpt interpret`, or folders that
            contain them
        out: the HTML file to write; an earlier report is replaced
        overwrite: replace a file that is not a report
    """

    paths: tuple[Path, ...] = field(metadata={"flag": "paths"})
    out: Path = Path("report.html")
    overwrite: bool = False

    def __call__(self) -> None:
        from tp_transformer.report.page import write_report

        report = write_report(self.paths, self.out, overwrite=self.overwrite)
        for file, problem in report.unreadable.items():
            print(f"tpt: {file} is not shown: {problem}", file=sys.stderr)
        sections = f"{len(report.sections)} section{'' if len(report.sections) == 1 else 's'}"
        print(f"{self.out}: {sections}; open it in a browser, it needs no network")
