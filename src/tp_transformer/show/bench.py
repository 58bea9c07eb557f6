"""The table of a bench: its format, and the texts in its cells, for documents and the report."""

from collections.abc import Sequence
from statistics import fmean

FORMAT = "tp-transformer-bench"  # in bench.json
ABSENT = "-"


def accuracy_text(mean: float, spread: float | None) -> str:
    """Return an accuracy in %, with its standard deviation over seeds if known."""
    return f"{100 * mean:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def difference_text(difference: float, p_seeds: float | None, p_questions: float) -> str:
    """Return a difference in points with its p-values over seeds and over questions."""
    seeds = ABSENT if p_seeds is None else _p(p_seeds)
    return f"{100 * difference:+.1f} (p {seeds}; {_p(p_questions)})"


def samples_text(samples: Sequence[int | None]) -> str:
    """Return the mean over the seeds that learned, and how many those are if not all."""
    reached = [one for one in samples if one is not None]
    if not reached:
        return ABSENT
    of_all = "" if len(reached) == len(samples) else f" ({len(reached)} of {len(samples)})"
    return f"{fmean(reached):,.0f}{of_all}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
