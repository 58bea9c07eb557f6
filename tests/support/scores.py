"""Results that no model had, for tests of what is done with results."""

import numpy as np

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.scoring.results import ModuleScore, Results, SplitScore


def made_up(name, *, seed=0, better=0.0, splits=None, n=400, skill=None):
    """Results with a random skill for each module; `better` adds to it on the same questions."""
    questions = np.random.default_rng(1)
    own = np.random.default_rng(seed)
    found = {}
    for split, modules in (splits or MATHEMATICS.splits).items():
        scores = {}
        for module in modules:
            share = questions.beta(2, 0.7) if skill is None else skill
            hardness = questions.random(n)
            verdicts = hardness + own.normal(0, 0.05, n) < share + better
            wrong = {"sign": 30, "other": 20} if not verdicts.all() else {}
            scores[module] = ModuleScore(
                verdicts=verdicts, loss=0.25, n_tokens=3 * n, sha256=f"{split} {module}",
                wrong=wrong,
            )  # fmt: skip
        found[split] = SplitScore(scores)
    return Results(
        model={"name": name, "n_parameters": 49_178_112, "step": 700_000},
        data={"held_out": 2048}, choice={}, made={}, splits=found, near_ties=[], decoding=None,
    )  # fmt: skip
