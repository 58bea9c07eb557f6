"""Results side by side in Python: what `tpt compare` prints, as an object."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tp_transformer.foundation import html
from tp_transformer.foundation.errors import ResultsError
from tp_transformer.foundation.frames import frame
from tp_transformer.scoring.compare import named_apart, task_of
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.seeds import question_pairs
from tp_transformer.show import document
from tp_transformer.show.table import (
    averages_title,
    footnotes,
    pair_line,
    render_comparison,
    seed_lines,
)

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 100  # columns of the text


def compare(*results: Results | str | Path) -> "Comparison":
    """Compare results with each other, and with the paper's Table 1 if they are on its dataset.

    Args:
        results: what `evaluate` returned or wrote; the first is compared with each of the others
    """
    if not results:
        raise ResultsError("there is nothing to compare: give at least one result")
    return Comparison(*(one if isinstance(one, Results) else Results.read(one) for one in results))


class Comparison:
    """Results of one task side by side; as text, it is what `tpt compare` prints."""

    def __init__(self, *results: Results) -> None:
        self.results = named_apart(results)
        self.task = task_of(self.results)

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.results)
        return f"Comparison({names}; {self.task.name})"

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
        render_comparison(self.results, console)
        assert isinstance(console.file, io.StringIO)  # noqa: S101, for the type checker
        return console.file.getvalue()

    def _repr_html_(self) -> str:
        return html.table(
            averages_title(self.results),
            *document.averages(self.results),
            notes=[*self.differences, *footnotes(self.results)],
        )

    @property
    def differences(self) -> list[str]:
        """The first result minus each of the others, in sentences.

        On the same questions, or over seeds where there are several.
        """
        return [
            f"{first.name} minus {other.name}, {pair_line(one, first.name, other.name)}"
            for first, other, found in question_pairs(self.results)
            for one in found
        ] + seed_lines(self.results)

    def frame(self) -> "pd.DataFrame":
        """Return all numbers in long format.

        The column `kind` is average, module, difference (of two averages), module difference, seeds
        (mean and spread over seeds), seeds difference, or note (what makes results incomparable).
        """
        return frame(document.long_rows(self.results), document.CSV_COLUMNS)

    def to_markdown(self) -> str:
        """Return the averages, the modules and the differences as Markdown."""
        return document.markdown(self.results)

    def to_csv(self) -> str:
        """Return the rows of `frame` as CSV."""
        return document.csv_text(self.results)

    def to_latex(self) -> str:
        """Return the averages and the modules as LaTeX."""
        return document.latex(self.results)
