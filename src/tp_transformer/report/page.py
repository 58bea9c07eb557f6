"""`tpt report`: one self-contained HTML file from runs, results and analyses."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from tp_transformer import __version__
from tp_transformer.errors import ResultsError, SettingsError
from tp_transformer.html import (
    Markup,
    check_replaceable,
    content_policy,
    element,
    joined,
    page_mark,
    paragraph,
)
from tp_transformer.report.inputs import Inputs
from tp_transformer.report.markup import Section
from tp_transformer.report.sections import SECTIONS
from tp_transformer.runtime.files import atomic_write

TITLE = "TP-Transformer report"
KIND = "report"


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written.

    Attributes:
        file: the HTML file
        sections: the titles of its sections
        sources: the files and run folders it shows
        unreadable: .json files in the folders that could not be read, with the reason
    """

    file: Path
    sections: tuple[str, ...]
    sources: tuple[Path, ...]
    unreadable: dict[Path, str]


def write_report(
    paths: Sequence[str | Path], out: str | Path = "report.html", *, overwrite: bool = False
) -> WrittenReport:
    """Write a report on everything that some paths are or contain.

    The same inputs give the same file. Paths in it are relative to its folder.

    Args:
        paths: run folders, results of `tpt evaluate`, folders or JSON files of `tpt interpret`, or
            folders that contain any of these
        out: the HTML file to write; an earlier report is replaced
        overwrite: whether to replace a file that is not a report, too
    """
    out = Path(out)
    check_replaceable(out, KIND, overwrite=overwrite)
    if not paths:
        raise SettingsError("there is nothing to report on: name runs, results or analyses")
    inputs = Inputs.find(paths, out.absolute().parent)
    sections = [section for make in SECTIONS.values() for section in make(inputs)]
    sources = dict.fromkeys(source for section in sections for source in section.sources)
    for path in map(Path, paths):
        _require_shown(path, list(sources))
    page = _page(sections, inputs, [inputs.shown(path) for path in paths])
    with atomic_write(out) as unfinished:
        unfinished.write_text(page, "utf-8", errors="replace")  # JSON may have half a character
    titles = tuple(section.title for section in sections)
    return WrittenReport(out, titles, tuple(sources), inputs.unreadable)


def _require_shown(path: Path, sources: Sequence[Path]) -> None:
    """Raise if no section shows anything of a path."""
    if any(source.resolve().is_relative_to(path.resolve()) for source in sources):
        return
    raise ResultsError(
        f"{path} is not a run, results or an analysis, and contains none; "
        "`tpt train`, `tpt evaluate` and `tpt interpret` write them"
    )


def _page(sections: Sequence[Section], inputs: Inputs, paths: Sequence[str]) -> str:
    script, style = _asset("report.js"), _asset("report.css")
    names = [f"section-{number}" for number in range(1, len(sections) + 1)]
    contents = [
        element("li", element("a", section.title, href=f"#{name}"))
        for name, section in zip(names, sections, strict=True)
    ]
    body = [_section(section, name) for name, section in zip(names, sections, strict=True)]
    return Template(_asset("page.html")).substitute(
        mark=page_mark(KIND),
        policy=content_policy(script, style),
        style=style,
        script=script,
        title=TITLE,
        contents=joined(contents),
        command=element("code", shlex.join(["tpt", "report", *paths])),
        sections=joined(body),
        sources=_sources(sections, inputs),
        version=__version__,
    )


def _section(section: Section, name: str) -> Markup:
    title = element("h2", section.title, id=f"{name}-title")
    summary = paragraph(section.summary, "summary")
    return element(
        "section", title, summary, *section.body, id=name, aria_labelledby=f"{name}-title"
    )


def _sources(sections: Sequence[Section], inputs: Inputs) -> Markup:
    titles: dict[str, list[str]] = {}
    for section in sections:
        for source in section.sources:
            titles.setdefault(inputs.shown(source), []).append(section.title)
    return joined(
        element("li", element("code", source), f": {', '.join(shown_in)}")
        for source, shown_in in titles.items()
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")
