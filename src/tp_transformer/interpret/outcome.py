"""What an analysis leaves behind: its numbers as JSON, and the line under its figures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tp_transformer import atomic, provenance
from tp_transformer.interpret.record import Sample
from tp_transformer.model.family import AnyModel

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Context:
    """Which model and which questions: with a result's seed, what makes it repeatable."""

    model: Values  # as `provenance.describe` has it
    made: Values  # as `provenance.circumstances` has it
    sample: Sample

    @classmethod
    def of(cls, model: AnyModel, sample: Sample, *, folder: str | Path | None = None) -> "Context":
        """The context of an analysis of a model, loaded from a folder."""
        return cls(
            model=provenance.describe(model, folder),
            made=provenance.circumstances(next(model.parameters()).device),
            sample=sample,
        )

    def caption(self, seed: int) -> str:
        """The model, the data and the seed in one line, for under a figure."""
        step = self.model["step"]
        trained = "" if step is None else f" after {step:,} steps"
        return f"{self.model['name']}{trained}; {self.sample.origin}; analysis seed {seed}"


def write(folder: str | Path, name: str, found: Mapping[str, Any], context: Context) -> Path:
    """Write what an analysis found to `folder/name.json`; not-a-number is refused."""
    values = {
        "analysis": name,
        "model": context.model,
        "sample": {
            "origin": context.sample.origin,
            "questions": list(context.sample.questions),
            "answers": list(context.sample.answers),
        },
        "made": context.made,
        **plain(found),
    }
    path = Path(folder) / f"{name}.json"
    with atomic.whole(path) as unfinished:
        unfinished.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", "utf-8")
    return path


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy, mappings and sequences, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
