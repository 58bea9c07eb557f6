"""The plotting style, for the column width of a paper; saves SVG, PDF and PNG.

Figures do not depend on the global state of matplotlib, and the same data gives the same file.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_transformer.errors import UserError
from tp_transformer.html import Markup
from tp_transformer.runtime.files import atomic_write

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.image import AxesImage

_TOOLTIP = "tooltip: "
FORMATS = ("svg", "pdf", "png")
COLUMN, PAGE = 3.03, 6.3  # inches: one and both columns in the style of the ACL
SMALLEST = 6.0  # points, legible in print
PER_INCH = 30  # narrow characters of the smallest size per inch
PER_LINE = 0.102  # inches from one line of the smallest size to the next
START, END = "#", "%"  # how the paper's figures print the start and end tokens
TOKENS = f"{START} and {END} are the start and end tokens."
# Okabe and Ito (2008): distinguishable for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
QUALITATIVE = "tab20"  # matplotlib's palette of ten hues, each in a dark and a light shade
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


def caption_of(drawn: "Figure") -> str:
    """Return the caption of a figure in one line."""
    return " ".join(drawn.get_supxlabel().split())


def remove_caption(drawn: "Figure") -> None:
    """Take the caption away, and the inches that its lines take."""
    n_lines = len(drawn.get_supxlabel().splitlines())
    drawn.supxlabel("")
    drawn.set_figheight(drawn.get_figheight() - n_lines * PER_LINE)


def qualitative(number: int) -> tuple[str, str]:
    """Return a colour for an unordered category, and black or white for a text on it.

    There are 20 colours, the darker ten first; categories beyond them repeat the colours.
    """
    import matplotlib as mpl

    palette = mpl.colormaps[QUALITATIVE]
    number %= palette.N
    return _with_ink(palette(2 * number % palette.N + 2 * number // palette.N))


def shades(colormap: str, first: float, last: float, count: int) -> list[tuple[str, str]]:
    """Return evenly spaced shades of a colormap, each with black or white for a text on it."""
    import matplotlib as mpl

    step = (last - first) / max(count - 1, 1)
    return [_with_ink(mpl.colormaps[colormap](first + step * number)) for number in range(count)]


def _with_ink(colour: tuple[float, float, float, float]) -> tuple[str, str]:
    from matplotlib.colors import to_hex

    red, green, blue, _ = colour
    # The relative luminance at which black and white have the same contrast (WCAG 2).
    channels = zip((0.2126, 0.7152, 0.0722), (red, green, blue), strict=True)
    luminance = sum(weight * ((value + 0.055) / 1.055) ** 2.4 for weight, value in channels)
    return to_hex((red, green, blue)), "black" if luminance > 0.179 else "white"


@dataclass(frozen=True)
class Cells:
    """Square cells of a heat map, with a token at each row and column."""

    rows: Sequence[str]
    columns: Sequence[str]

    SMALLEST = 0.06  # inches, with the characters of rows in two columns
    READABLE = 0.088  # inches, with the characters of rows in one column
    LARGEST = 0.2  # inches

    @property
    def smallest(self) -> float:
        """The smallest size of a cell in inches."""
        return self.SMALLEST if self._longest == 1 else self.READABLE

    @property
    def beside(self) -> float:
        """Inches that the tokens of rows take, and the space around a heat map."""
        return 0.18 + 0.055 * (self._longest + 1)

    @property
    def above(self) -> float:
        """Inches that the title and the tokens of columns take."""
        return 0.28 + 0.055 * self._longest

    @property
    def _longest(self) -> int:
        return max(map(len, (*self.rows, *self.columns)))

    def size(self, width: float) -> float:
        """Return the largest size of a cell at which a heat map is no wider than so many inches."""
        size = (width - self.beside) / len(self.columns)
        return min(self.LARGEST, max(self.smallest, size))

    def width(self, size: float) -> float:
        """Return the width of a heat map in inches."""
        return size * len(self.columns) + self.beside

    def height(self, size: float) -> float:
        """Return the height of a heat map in inches."""
        return max(size * len(self.rows), 0.15) + self.above

    def draw(self, axes: "Axes", values: "npt.ArrayLike", size: float, most: float) -> "AxesImage":
        """Draw values from 0 to `most`, of cells of a size in inches."""
        image = axes.imshow(values, cmap="viridis", vmin=0, vmax=most, aspect="equal")
        axes.grid(visible=False)
        look: dict[str, Any] = {"family": "monospace"}
        turned = 90 if self._longest > 1 else 0
        axes.set_xticks(range(len(self.columns)), list(self.columns), rotation=turned, **look)
        step = 1 if size >= self.READABLE else 2
        axes.set_yticks(range(0, len(self.rows), step), list(self.rows[::step]), **look)
        axes.tick_params(length=0, pad=1)
        if step == 2:  # the other rows have their characters further to the left
            axes.set_yticks(range(1, len(self.rows), 2), list(self.rows[1::2]), minor=True, **look)
            axes.tick_params(which="minor", length=0, pad=6, labelsize=SMALLEST)
        return image


def plot_weights(
    weights: "npt.NDArray[Any]", rows: Sequence[str], columns: Sequence[str], title: str, text: str
) -> "Figure":
    """Plot attention weights (query, key) with their tokens, a title, and a text as caption."""
    cells = Cells(rows, columns)
    smallest = cells.width(cells.smallest)
    width = COLUMN if smallest <= COLUMN else max(PAGE, smallest)
    size = cells.size(width)
    with figure(width, 1.0) as (drawn, axes):
        image = cells.draw(axes, weights, size, float(weights.max()))
        add_weight_bar(drawn, image, axes)
        drawn.suptitle(broken(title, 0.75 * width))
        below = caption(drawn, text)
        drawn.set_figheight(cells.height(size) + below + 0.7)
        return drawn


def add_weight_bar(drawn: "Figure", image: "AxesImage", axes: Any) -> None:
    """Add the colour bar of attention weights below some axes."""
    bar = drawn.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("attention weight")


def tick_indices(count: int, most: int) -> range:
    """Return evenly spaced indices for tick labels with at most `most` digits in total."""
    return range(0, count, -(-count * len(str(count - 1)) // most))


def add_tooltip(artist: "Artist", text: str) -> None:
    """Add a text that browsers show when the artist is pointed at in an SVG."""
    artist.set_gid(f"{_TOOLTIP}{text}")  # which matplotlib writes as the id of a group


def save(drawn: "Figure", folder: Path, name: str) -> list[Path]:
    """Save a figure in all formats; return the files."""
    import matplotlib as mpl

    files = []
    for kind in FORMATS:
        file = folder / f"{name}.{kind}"
        with atomic_write(file) as unfinished, mpl.rc_context(STYLE):
            if kind == "svg":
                unfinished.write_text(_svg(drawn), "utf-8")
            else:
                undated = {"CreationDate": None} if kind == "pdf" else {}
                drawn.savefig(unfinished, format=kind, dpi=300, metadata=undated)
        files.append(file)
    return files


def inline_svg(drawn: "Figure", title: str) -> Markup:
    """Return a figure as an element of an HTML page, which may set other colours by its style.

    Colours are attributes, which the style of a page overrides; inline styles, which a
    content-security policy forbids, are not used. The title is read by screen readers.
    """
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        text = _svg(drawn, transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # other figures of the page have the same ids
    text = re.sub(r'(<[^<>]*) style="([^"]*)"', _with_attributes, text)
    label = f'role="img" aria-label="{escape(title)}" stroke-linejoin="round"'
    return Markup(text[text.index("<svg") :].replace("<svg", f"<svg {label}", 1))


def _svg(drawn: "Figure", **options: Any) -> str:
    file = io.StringIO()
    drawn.savefig(file, format="svg", dpi=300, metadata={"Date": None}, **options)
    return re.sub(rf'<g id="{_TOOLTIP}([^"]*)">', r"<g><title>\1</title>", file.getvalue())


def _with_attributes(tag: re.Match[str]) -> str:
    """Replace the inline style of a tag by attributes."""
    declarations = (text.split(":", 1) for text in tag[2].split(";"))
    attributes = (f'{name.strip()}="{value.strip()}"' for name, value in declarations)
    return " ".join((tag[1], *attributes))
