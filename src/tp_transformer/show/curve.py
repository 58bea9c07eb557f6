"""Learning curves: the error of a run on held-out and on monitored questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tp_transformer import figures
from tp_transformer.errors import FolderError
from tp_transformer.runtime.run_folder import METRICS
from tp_transformer.scoring.statistics import wilson
from tp_transformer.training.record import MONITOR, VALIDATION, Record, read_records

_STYLES = {MONITOR: "-", VALIDATION: ":"}
_HALF_LINE = 45  # characters of the legend in half the width of the figure


@dataclass(frozen=True)
class Curve:
    """The error of a run on the same questions at each validation."""

    name: str
    kind: str  # of the records
    questions: str  # where they are from, such as a split
    n: int  # number of questions
    steps: tuple[int, ...]
    errors: tuple[float, ...]  # shares of wrong answers

    @property
    def rises(self) -> list[int]:
        """The steps at which the error was not lower than at the previous validation."""
        pairs = zip(self.steps[1:], pairwise(self.errors), strict=True)
        return [step for step, (before, now) in pairs if now >= before]

    def line(self) -> str:
        """Describe the first and last error, and whether the curve is strictly decreasing."""
        ends = f"{self.errors[0]:.2%} at step {self.steps[0]:,}"
        if len(self.steps) > 1:
            ends += f", {self.errors[-1]:.2%} at step {self.steps[-1]:,}"
        described = f"{self.name}: error on {self.n:,} questions, {self.questions}: {ends}"
        n_pairs = len(self.steps) - 1
        if not n_pairs:
            return described
        if not self.rises:
            return f"{described}; strictly decreasing over {n_pairs + 1} validations"
        first = f"the first time at step {self.rises[0]:,}"
        return f"{described}; not lower at {len(self.rises)} of {n_pairs} validations, {first}"


def read_curves(run: str | Path) -> list[Curve]:
    """Return the curves of a run: of its monitor, if any, and of its validation."""
    file = Path(run) / METRICS
    if not file.is_file():
        raise FolderError(f"{run} is not a run: it has no {METRICS}")
    records, _ = read_records(file)
    curves = curves_of(records, Path(run).absolute().name)
    if not curves:
        raise FolderError(f"{run} has no validation yet")
    return curves


def curves_of(records: Sequence[Record], name: str) -> list[Curve]:
    """Return the curves in the records of a run; none before its first validation."""
    curves = []
    for kind in _STYLES:
        own = [record for record in records if record["kind"] == kind]
        if own:
            steps = tuple(record["step"] for record in own)
            errors = tuple(1 - record["exact_match"] for record in own)
            source = own[-1]["split"] if kind == MONITOR else "held out of training"
            curves.append(Curve(name, kind, source, own[-1]["n"], steps, errors))
    return curves


def save_curves(curves: Sequence[Curve], folder: str | Path) -> list[Path]:
    """Plot the curves of one or several runs in one figure; return the files."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    with figures.figure(figures.PAGE, 2.6) as (drawn, axes):
        for curve in curves:
            colour = figures.COLOURS[names.index(curve.name) % len(figures.COLOURS)]
            right = [round((1 - error) * curve.n) for error in curve.errors]
            intervals = [wilson(count, curve.n) for count in right]
            axes.plot(
                curve.steps,
                [100 * error for error in curve.errors],
                _STYLES[curve.kind],
                color=colour,
                marker=".",
                markersize=3,
                linewidth=1.0,
                label=f"{curve.name}, {curve.questions}",
            )
            axes.fill_between(
                curve.steps,
                [100 * (1 - high) for _, high in intervals],
                [100 * (1 - low) for low, _ in intervals],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("training steps")
        axes.set_ylabel("wrong answers, %")
        longest = max(len(curve.name) + len(curve.questions) for curve in curves)
        ncols = 2 if longest <= _HALF_LINE else 1
        legend = drawn.legend(loc="outside upper center", ncols=ncols)
        for text in legend.get_texts():
            text.set_parse_math(False)  # names may contain $
        figures.caption(
            drawn,
            "Error on the same questions at each validation, with 95% Wilson intervals. "
            "Test questions are only monitored, not used to select a checkpoint.",
        )
        return figures.save(drawn, Path(folder), "error-curve")
