"""The result of an analysis: a summary, its numbers as JSON, its figures; intervals in them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tp_transformer import figures
from tp_transformer.html import titled_paragraphs
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model import checkpoint
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.runtime import provenance
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.statistics import Interval, resample
from tp_transformer.table import notebook_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The model, the questions and the seed of an analysis: what makes it repeatable."""

    model: Values  # from `checkpoint.describe`
    environment: Values = field(compare=False)  # from `provenance.environment`
    sample: Sample
    seed: int

    @classmethod
    def of(cls, model: AnyModel, sample: Sample, seed: int) -> "Context":
        """Return the context of an analysis of a model that is not known to be in a folder."""
        return cls(
            model=checkpoint.describe(model, None),
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
        tables = (
            notebook_table(table.title, table.columns, table.rows, [table.note])
            for table in self.tables()
        )
        return titled_paragraphs(self.name, self.summary()) + "".join(tables)

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
        names = (field.name for field in fields(self) if field.name != "context")
        return {name: getattr(self, name) for name in names}

    def plot(self) -> "dict[str, Figure]":
        """Return the figures by name; by default none."""
        return {}

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
        captions = {name: figures.caption_of(plot) for name, plot in plots.items()}
        if not caption:
            for plot in plots.values():
                figures.remove_caption(plot)
        values = {**self.to_json(), "captions": captions, "has_captions": caption}
        text = json.dumps(values, indent=1, allow_nan=False) + "\n"
        files = []
        for name, plot in track("drawing figures", plots.items(), len(plots)):
            files += figures.save(plot, Path(folder), name)
        path = Path(folder) / f"{self.name}.json"
        with atomic_write(path) as unfinished:
            unfinished.write_text(text, "utf-8")
        return [path, *files]


def plain(value: Any) -> Any:
    """Convert dataclasses, numpy arrays, mappings and sequences to values that JSON can hold.

    Of a dataclass these are its fields, or what its method `values` returns.
    """
    if is_dataclass(value):
        if callable(values := getattr(value, "values", None)):
            return plain(values())
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def ratio_interval(
    values: "npt.NDArray[np.number]",
    weights: "npt.NDArray[np.number] | None" = None,
    *,
    group: "npt.NDArray[np.int64] | None" = None,
    **options: Any,
) -> Interval | None:
    """Return a bootstrap interval of the sum of values over the sum of their weights.

    Groups, such as the positions of a question, are resampled together; without them, each value is
    one of its own. `options` are those of `resample`.
    """
    weights = np.ones(len(values)) if weights is None else weights
    if group is not None:
        _, which = np.unique(group, return_inverse=True)
        values, weights = np.bincount(which, values), np.bincount(which, weights)
    return resample(len(values), lambda drawn: (drawn @ values) / (drawn @ weights), **options)


def in_words(ends: Sequence[float] | None, form: str = ".3f", scale: float = 1) -> str:
    """Return an interval as a text, "low to high", or "-" if there is none."""
    return "-" if ends is None else " to ".join(f"{scale * end:{form}}" for end in ends)
