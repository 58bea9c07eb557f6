"""Questions that the page offers: examples of every module, and those of an evaluation."""

import json
from functools import cache
from importlib.resources import files

from tp_transformer.foundation.provenance import Values


@cache
def examples() -> list[Values]:
    """Two questions of each module, as {module, question, answer}.

    They are the first two that `data.generate(module, split="interpolate", seed=EXAMPLE_SEED)`
    gives; they lie in a file because the generator is an optional dependency.
    """
    text = (files(__package__) / "assets" / "examples.json").read_text("utf-8")
    found: list[Values] = json.loads(text)
    return found
