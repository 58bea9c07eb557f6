"""How often greedy search in float32 finds another answer than in float64, and by how little.

    python benchmarks/agreement.py MODEL STORE [--split interpolate] [--count 2000]
                                   [--precision float32]

Prints every question whose answers differ, with the margin in float64: how much likelier the first
symbol that differs is than the one written instead. Only near-ties should be there.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import tp_transformer as tpt
from tp_transformer.data.store import open_store


def margin(model: torch.nn.Module, question: str, answer: str, other: str) -> float:
    """By how much a model prefers an answer to another, where they part, in log-probability."""
    batch = tpt.Batch.from_text([question] * 2, [answer, other], model.vocabulary)
    with torch.no_grad():
        scores = model(batch.source[:1], batch.target_input[:1])[0].log_softmax(dim=-1)
    place = int((batch.target_output[0] != batch.target_output[1]).nonzero()[0])
    first, second = batch.target_output[:, place]
    return float(scores[place, first] - scores[place, second])


def main() -> None:
    """Count and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="interpolate")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    split = open_store(options.store)[options.split]
    count = min(options.count, len(split))
    rows = np.random.default_rng(0).choice(len(split), count, replace=False)
    questions, _ = split.rows(np.sort(rows))
    exact = tpt.load(options.model).double()
    rounded = tpt.load(options.model).to(getattr(torch, options.precision))
    answers = zip(questions, exact.solve(questions), rounded.solve(questions), strict=True)
    margins = []
    for question, answer, other in answers:
        if answer != other:
            margins.append(margin(exact, question, answer, other))
            print(f"{margins[-1]:.2e}  {question}  {answer!r} or {other!r}")
    largest = f", by at most {max(margins):.2e}" if margins else ""
    print(f"{len(margins)} of {count} answers differ in {options.precision}{largest}")


if __name__ == "__main__":
    main()
