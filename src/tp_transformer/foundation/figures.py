"""The plotting style, for the column width of a paper; saves SVG, PDF and PNG.

Figures do not depend on the global state of matplotlib, and the same data gives the same file.
"""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_transformer.foundation import atomic
from tp_transformer.foundation.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
COLUMN, PAGE = 3.03, 6.3  # inches: one and both columns in the style of the ACL
SMALLEST = 6.0  # points, legible in print
PER_INCH = 30  # narrow characters of the smallest size per inch
PER_LINE = 0.102  # inches from one line of the smallest size to the next
# Okabe and Ito (2008): distinguishable for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib
    "font.size": 6.5,
    "figure.titlesize": 7.5,
    "axes.titlesize": 7.0,
    "axes.labelsize": 6.5,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "legend.title_fontsize": 7.5,
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.6,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.0,
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
    """Yield a figure of a size in inches and its axes, in the common style."""
    with blank(width, height) as drawn:
        yield drawn, drawn.add_subplot()


@contextmanager
def blank(width: float, height: float) -> Iterator["Figure"]:
    """Yield an empty figure of a size in inches, in the common style."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "figures need matplotlib: pip install 'tp-transformer[interpret]'"
        ) from error
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def broken(text: str, width: float) -> str:
    """Wrap a text to lines of at most `width` inches in the smallest size."""
    per_line = max(1, int(width * PER_INCH))
    lines = textwrap.wrap(text, per_line)
    while per_line > 1 and max(map(_across, lines), default=0.0) > width:
        per_line -= 1
        lines = textwrap.wrap(text, per_line)
    return "\n".join(lines)


def _across(line: str) -> float:
    """Return the width of a line in the smallest size, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=STYLE["font.family"], size=SMALLEST)
    return float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0] / 72)


def caption(drawn: "Figure", text: str) -> float:
    """Add a caption below a figure; return its height in inches."""
    lines = broken(text, drawn.get_figwidth() - 0.15)
    # Names may contain $, which must not be parsed as math.
    drawn.supxlabel(lines, fontsize=SMALLEST, color="#505050", parse_math=False)
    return (lines.count("\n") + 1) * PER_LINE


def tick_indices(count: int, most: int) -> range:
    """Return evenly spaced indices for tick labels with at most `most` digits in total."""
    return range(0, count, -(-count * len(str(count - 1)) // most))


def save(drawn: "Figure", folder: Path, name: str) -> list[Path]:
    """Save a figure in all formats; return the files."""
    import matplotlib as mpl

    files = []
    for kind in FORMATS:
        file = folder / f"{name}.{kind}"
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        with atomic.whole(file) as unfinished, mpl.rc_context(STYLE):
            drawn.savefig(unfinished, format=kind, dpi=300, metadata=undated)
        files.append(file)
    return files
