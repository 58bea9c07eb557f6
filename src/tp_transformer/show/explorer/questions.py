"""Questions that the page offers: examples of every module, and those of an evaluation."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from tp_transformer.data.store import TRAIN, open_store
from tp_transformer.foundation.errors import ResultsError
from tp_transformer.foundation.provenance import Values
from tp_transformer.scoring.options import Choice
from tp_transformer.scoring.questions import choose
from tp_transformer.scoring.results import Results

PER_MODULE = 20  # questions of a store, or of an evaluation, wrong ones first
EXAMPLE_SEED = 19101106611


@cache
def examples() -> list[Values]:
    """Two questions of each module, as {module, question, answer}.

    They are what `data.generate(module, split="interpolate", count=2, seed=EXAMPLE_SEED)` gives;
    they lie in a file because the generator is an optional dependency.
    """
    text = (files(__package__) / "assets" / "examples.json").read_text("utf-8")
    found: list[Values] = json.loads(text)
    return found


def stored(data: str | Path) -> list[Values]:
    """The first questions of each module of a store, as {module, question, answer}.

    They are of the first test split, or of the training split if there is no other.
    """
    store = open_store(data)
    split = next((name for name in store if name != TRAIN), TRAIN)
    found: list[Values] = []
    for asked in choose(store, Choice(splits=(split,), train_count=PER_MODULE)):
        texts = zip(*store[split].rows(asked.rows[:PER_MODULE]), strict=True)
        found += [
            {"module": asked.module, "question": question, "answer": answer}
            for question, answer in texts
        ]
    return found


def evaluated(results_file: str | Path, data: str | Path) -> list[Values]:
    """Questions of an evaluation's test splits, wrong ones first, with the verdict on each.

    A results file has the verdicts; the questions are those of the store that was evaluated.
    """
    results, store = Results.read(results_file), open_store(data)
    splits = tuple(name for name in results.splits if name != TRAIN)
    if not splits:
        raise ResultsError(f"{results_file} has no test split, whose questions could be shown")
    found: list[Values] = []
    patterns = tuple(results.choice.get("modules", ("*",)))
    for asked in choose(store, Choice(modules=patterns, splits=splits)):
        score = results.splits[asked.split].modules.get(asked.module)
        if score is None or score.sha256 != asked.sha256:
            raise ResultsError(f"{data} does not hold the questions that {results_file} is about")
        order = score.verdicts.argsort(kind="stable")[:PER_MODULE]  # False comes first
        texts = zip(*store[asked.split].rows(asked.rows[order]), strict=True)
        for place, (question, answer) in zip(order, texts, strict=True):
            found.append(
                {
                    "module": asked.module,
                    "split": asked.split,
                    "question": question,
                    "answer": answer,
                    "right": bool(score.verdicts[place]),
                }
            )
    return sorted(found, key=lambda each: bool(each["right"]))
