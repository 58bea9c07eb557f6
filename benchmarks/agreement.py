"""Differences between answers in float32 or bfloat16 and answers in float64.

    python benchmarks/agreement.py MODEL STORE [--split interpolate] [--count 2000]
                                   [--precision float32]

Prints each question with different answers of greedy search, and the margin in float64: the
difference in log-probability between the first tokens that differ. Only near-ties are expected.

Then prints the same for verdicts under teacher forcing: the differences between margins in float32
or bfloat16 and those in float64, the number of verdicts that change, and their largest margin; and
the number of questions for which greedy search in float64 disagrees with teacher forcing (0 is
expected).
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import tp_transformer as tpt
from tp_transformer.data.store import Split, open_store
from tp_transformer.scoring.verdict import DOUBTFUL, judge

SMALL = 1.0  # a margin that rounding could change


def margin(model: torch.nn.Module, question: str, answer: str, other: str) -> float:
    """Return the difference in log-probability of two answers at the first token that differs."""
    batch = tpt.Batch.from_text([question] * 2, [answer, other], model.vocabulary)
    with torch.no_grad():
        scores = model(batch)[0].log_softmax(dim=-1)
    place = int((batch.target_output[0] != batch.target_output[1]).nonzero()[0])
    first, second = batch.target_output[:, place]
    return float(scores[place, first] - scores[place, second])


def verdicts(exact: torch.nn.Module, model: Path, rows: np.ndarray, split: Split) -> None:
    """Print how much the margins of answers depend on the precision."""
    tokens = split.tokens(rows, exact.vocabulary)
    wanted = judge(exact, *tokens)
    rounded = tpt.load(model).eval()
    for name in ("float32", "bfloat16"):
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bfloat16"):
            found = judge(rounded, *tokens)
        apart = np.abs(found.margin - wanted.margin)
        turned = np.abs(found.margin[found.right != wanted.right])
        print(
            f"{name}: margins are off by at most {apart.max():.1e}, those below {SMALL} by "
            f"{apart[np.abs(wanted.margin) < SMALL].max(initial=0):.1e}; {len(turned)} of "
            f"{len(rows)} verdicts turn, of margins up to {turned.max(initial=0):.1e}; "
            f"{(np.abs(found.margin) < DOUBTFUL).mean():.0%} of margins are below {DOUBTFUL}; the "
            f"loss is off by {abs(found.loss.sum() / wanted.loss.sum() - 1):.1e} of it"
        )
    questions, answers = split.rows(rows)
    decoded = np.array(exact.solve(questions)) == np.array(answers)
    print(f"greedy search disagrees with teacher forcing on {(decoded != wanted.right).sum()}")


def main() -> None:
    """Compare answers and verdicts, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="interpolate")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    split = open_store(options.store)[options.split]
    count = min(options.count, len(split))
    rows = np.sort(np.random.default_rng(0).choice(len(split), count, replace=False))
    questions, _ = split.rows(rows)
    exact = tpt.load(options.model).double().eval()
    rounded = tpt.load(options.model).to(getattr(torch, options.precision))
    answers = zip(questions, exact.solve(questions), rounded.solve(questions), strict=True)
    margins = []
    for question, answer, other in answers:
        if answer != other:
            margins.append(margin(exact, question, answer, other))
            print(f"{margins[-1]:.2e}  {question}  {answer!r} or {other!r}")
    largest = f", by at most {max(margins):.2e}" if margins else ""
    print(f"{len(margins)} of {count} answers differ in {options.precision}{largest}")
    verdicts(exact, options.model, rows, split)


if __name__ == "__main__":
    main()
