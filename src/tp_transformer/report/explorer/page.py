"""`tpt explore`: one HTML file with style, scripts, models and questions, written or served."""

import json
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tp_transformer import __version__
from tp_transformer.errors import SettingsError
from tp_transformer.html import content_policy, page_mark
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import AnyModel, load
from tp_transformer.report.explorer import packing
from tp_transformer.report.explorer.contents import (
    answered_fraction,
    evaluated_questions,
    example_questions,
    read_roles,
    stored_questions,
)
from tp_transformer.report.explorer.server import address, serving
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.provenance import Values

KIND = "explorer"
STYLE = "page.css"
WORKER = ("bindings.js", "engine.js", "run.js", "worker.js")
SCRIPT = (
    *("client.js", "elements.js", "points.js", "colours.js", "clusters.js", "state.js"),
    *("python.js", "figures.js", "pane.js", "heads.js", "inspector.js", "dialog.js"),
    *("controls.js", "app.js"),
)
WEIGHTS_MARK = "<!-- weights -->"


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of a page.

    Attributes:
        models: one model, or two to compare
        folders: the folder of each model
        opening: the question to open on, or None
        roles: the clusters that `tpt interpret roles` found, as the page reads them, or None
        examples: questions of each module, as {module, question, answer}
        questions: questions of an evaluation, as {module, split, question, answer, right}
    """

    models: Sequence[AnyModel]
    folders: Sequence[str | Path]
    opening: str | None = None
    roles: Values | None = None
    examples: Sequence[Values] = ()
    questions: Sequence[Values] = ()

    def parts(self) -> Iterator[bytes]:
        """Yield the page in pieces, from its beginning to its end."""
        filled = _assets("page.html")
        for name, text in (
            ("mark", page_mark(KIND)),
            ("policy", self.policy),
            ("style", _assets(STYLE)),
            ("script", _assets(*SCRIPT)),
            ("worker", _assets(*WORKER)),
            ("data", _data(self._values())),
        ):
            filled = filled.replace(f"<!-- {name} -->", text, 1)
        before, after = filled.split(WEIGHTS_MARK)
        yield before.encode()
        for index, model in enumerate(self.models):
            for chunk in packing.weights(model):
                yield f'<script type="text/plain" data-weights="{index}">'.encode()
                yield chunk
                yield b"</script>\n"
        yield after.encode()

    @property
    def policy(self) -> str:
        """The content-security policy: this style, this script, workers, and nothing else."""
        return content_policy(_assets(*SCRIPT), _assets(STYLE), "worker-src blob:")

    def write(self, file: str | Path) -> None:
        """Write the page atomically."""
        with atomic_write(file) as unfinished, unfinished.open("wb") as page:
            page.writelines(self.parts())

    def serve(self, port: int) -> None:
        """Serve the page on this machine until interrupted."""
        with serving(b"".join(self.parts()), self.policy, port) as server:
            url = address(server)
            print(f"{url}: the explorer, on this machine only; Ctrl-C ends it", flush=True)
            if sys.stdout.isatty():
                webbrowser.open(url)
            with suppress(KeyboardInterrupt):
                server.serve_forever()

    def _values(self) -> Values:
        return {
            "version": __version__,
            "models": [
                packing.described(model, folder)
                for model, folder in zip(self.models, self.folders, strict=True)
            ],
            "opening": self.opening,
            "roles": self.roles,
            "examples": list(self.examples),
            "questions": list(self.questions),
        }


def _assets(*names: str) -> str:
    return "\n".join((files(__package__) / "assets" / name).read_text("utf-8") for name in names)


def _data(values: Values) -> str:
    """Return JSON that is safe inside a script element, for any texts."""
    return json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")


def make_page(
    model: Path | None,
    *,
    beside: Path | None = None,
    roles: Path | None = None,
    results: Path | None = None,
    data: Path | None = None,
) -> Page:
    """Return the page of one or two models; nothing is written."""
    if results is not None and data is None:
        raise SettingsError("--results needs --data, the store that was evaluated")
    first = model or bundled.default()
    folders = [first] if beside is None else [first, beside]
    models = []
    for folder in folders:
        models.append(load(folder))
        packing.require_supported(models[-1], folder)
    bundled_roles = bundled.find(first) / bundled.ROLES
    if roles is None and bundled_roles.is_file():
        roles = bundled_roles
    return Page(
        models=models,
        folders=folders,
        opening=answered_fraction(models[0]),
        roles=None if roles is None else read_roles(roles, models[0]),
        examples=example_questions() if data is None else stored_questions(data),
        questions=evaluated_questions(results, data) if results and data else [],
    )
