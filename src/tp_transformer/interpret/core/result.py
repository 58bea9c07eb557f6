"""The result of an analysis: a summary, its numbers as JSON, its figures."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tp_transformer.foundation import atomic, figures, html, provenance
from tp_transformer.foundation.progress import track
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model import identity
from tp_transformer.model.family import AnyModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The model, the questions and the seed of an analysis: what makes it repeatable."""

    model: Values  # from `identity.describe`
    environment: Values = field(compare=False)  # from `provenance.environment`
    sample: Sample
    seed: int

    @classmethod
    def of(cls, model: AnyModel, sample: Sample, seed: int) -> "Context":
        """Return the context of an analysis of a model that is not known to be in a folder."""
        return cls(
            model=identity.describe(model, None),
            environment=provenance.environment(next(model.parameters()).device),
            sample=sample,
            seed=seed,
        )

    @property
    def caption(self) -> str:
        """The model, the data and the seed in one line, to be printed below a figure."""
        step = self.model["step"]
        trained = "" if step is None else f" after {step:,} steps"
        return f"{self.model['name']}{trained}; {self.sample.origin}; analysis seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Numbers of a result, as texts in rows and columns; the first column has the names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""  # how to read it


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """Base class for the results of analyses."""

    context: Context

    def __str__(self) -> str:
        return "\n".join(self.summary())

    def _repr_html_(self) -> str:
        tables = (html.table(one.title, one.columns, one.rows, [one.note]) for one in self.tables())
        return html.paragraphs(self.name, self.summary()) + "".join(tables)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the JSON file."""

    @abstractmethod
    def summary(self) -> list[str]:
        """Return what was found in sentences, one line for each finding."""

    def tables(self) -> list[ResultTable]:
        """Return the numbers that the findings are based on, for a terminal; by default none."""
        return []

    def values(self) -> Values:
        """Return the numbers that this analysis found; by default, all fields but the context."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "context"}

    def plot(self) -> "dict[str, Figure]":
        """Return the figures by name.

        By default they come from `plot` in the module `figure` beside that of the result, if any.
        """
        package = type(self).__module__.rpartition(".")[0]
        if not package or find_spec(f"{package}.figure") is None:
            return {}
        plots: dict[str, Figure] = import_module(f"{package}.figure").plot(self)
        return plots

    def to_json(self) -> Values:
        """Return the numbers, the summary and the context as values that JSON can hold."""
        context = self.context
        return {
            "analysis": self.name,
            "model": context.model,
            "sample": {
                "origin": context.sample.origin,
                "questions": list(context.sample.questions),
                "answers": list(context.sample.answers),
            },
            "environment": context.environment,
            "seed": context.seed,
            "summary": self.summary(),
            "tables": plain(self.tables()),
            **plain(self.values()),
        }

    def save(self, folder: str | Path, *, caption: bool = True) -> list[Path]:
        """Write the numbers as JSON and the figures as SVG, PDF and PNG; return the files.

        The figures are drawn first, so that nothing is written if that fails, and the JSON file is
        written last: where it is, the analysis is complete. Captions are written
        to the JSON file, and below the figures unless `caption` is false (`has_captions`).
        """
        plots = self.plot()
        captions = {name: figures.caption_of(drawn) for name, drawn in plots.items()}
        if not caption:
            for drawn in plots.values():
                figures.remove_caption(drawn)
        values = {**self.to_json(), "captions": captions, "has_captions": caption}
        text = json.dumps(values, indent=1, allow_nan=False) + "\n"
        files = []
        for name, drawn in track("drawing figures", plots.items(), len(plots)):
            files += figures.save(drawn, Path(folder), name)
        path = Path(folder) / f"{self.name}.json"
        with atomic.whole(path) as unfinished:
            unfinished.write_text(text, "utf-8")
        return [path, *files]


def plain(value: Any) -> Any:
    """Convert dataclasses, numpy arrays, mappings and sequences to values that JSON can hold."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
