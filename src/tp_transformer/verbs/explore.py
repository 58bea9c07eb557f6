"""`tpt explore`: a model in a page that computes it in the browser."""

from dataclasses import dataclass
from pathlib import Path

from tp_transformer.ranges import Port
from tp_transformer.verbs.verb import Verb


@dataclass(frozen=True, kw_only=True)
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
