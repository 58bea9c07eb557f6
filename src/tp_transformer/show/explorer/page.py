"""The page: one HTML file with style, scripts, models and questions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tp_transformer import __version__
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.provenance import Values
from tp_transformer.show.explorer import packing
from tp_transformer.show.page_file import content_policy, mark

KIND = "explorer"
WORKER = ("bindings.js", "engine.js", "run.js", "worker.js")
SCRIPT = (
    *(
        "client.js",
        "elements.js",
        "points.js",
        "colours.js",
        "clusters.js",
        "state.js",
        "python.js",
    ),
    *("figures.js", "pane.js", "heads.js", "inspector.js", "dialog.js", "controls.js", "app.js"),
)
WEIGHTS_PLACE = "<!-- weights -->"


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
        filled = _asset("page.html")
        for place, text in (
            ("mark", mark(KIND)),
            ("policy", self.policy),
            ("style", _style()),
            ("script", _script()),
            ("worker", _joined(WORKER)),
            ("data", _data(self._values())),
        ):
            filled = filled.replace(f"<!-- {place} -->", text, 1)
        before, after = filled.split(WEIGHTS_PLACE)
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
        return content_policy(_script(), _style(), "worker-src blob:")

    def write(self, file: str | Path) -> None:
        """Write the page atomically."""
        with atomic_write(file) as unfinished, unfinished.open("wb") as page:
            page.writelines(self.parts())

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


def _style() -> str:
    return _asset("page.css")


def _script() -> str:
    return _joined(SCRIPT)


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _joined(names: Sequence[str]) -> str:
    return "\n".join(map(_asset, names))


def _data(values: Values) -> str:
    """Return JSON that is safe inside a script element, for any texts."""
    return json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
