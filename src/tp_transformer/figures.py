"""One plotting style; saves SVG, PDF and PNG.

Matplotlib is used without its global state, so a figure looks the same whatever else is drawn in
the process, and the same data gives the same file.
"""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_transformer import atomic
from tp_transformer.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
# Okabe and Ito (2008): told apart by colour-blind readers, too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e0e0e0",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "tp-transformer",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """A figure of that size in inches with one pair of axes, in the style of all."""
    with blank(width, height) as drawn:
        yield drawn, drawn.add_subplot()


@contextmanager
def blank(width: float, height: float) -> Iterator["Figure"]:
    """A figure of that size in inches, in the style of all, with nothing in it yet."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "figures need matplotlib: pip install 'tp-transformer[interpret]'"
        ) from error
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def caption(drawn: "Figure", text: str) -> None:
    """A small line under a figure, broken where it would be wider than the figure."""
    per_line = int(drawn.get_figwidth() * 21)  # characters of 6 points in an inch
    drawn.supxlabel("\n".join(textwrap.wrap(text, per_line)), fontsize=6, color="#505050")


def save(drawn: "Figure", folder: Path, name: str) -> list[Path]:
    """Save a figure in every format; returns the files."""
    files = []
    for kind in FORMATS:
        file = folder / f"{name}.{kind}"
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        with atomic.whole(file) as unfinished:
            drawn.savefig(unfinished, format=kind, dpi=200, metadata=undated)
        files.append(file)
    return files
