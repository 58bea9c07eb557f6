"""Charts of the report as SVG.

Each chart carries its colours for a light background, so that it can be saved as it is; the style
of the page overrides them by class.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tp_transformer.figures import COLOURS
from tp_transformer.html import Markup, element
from tp_transformer.scoring.statistics import Interval
from tp_transformer.table import cut

WIDTH = 380  # of a chart; two are side by side on a wide screen
INK, FAINT, LINE, TRACK = "#23272e", "#626974", "#dcdfe4", "#eef0f3"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MOST_POINTS = 400  # of a line
_TALLEST = 980  # of the rows of a bar chart, at which it fits on a printed page
_NAME_HEIGHT, _ROW_GAP = 17, 7  # above and below the bars of a row
_LETTER = 6.1  # width of a character of a legend, on average

Placement = Callable[[tuple[float, float]], tuple[float, float]]  # from values to the page


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A share with its interval."""

    share: float
    interval: Interval
    tip: str  # shown when pointed at


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart: values, and a band around them if known."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    band: Sequence[Interval] | None = None
    is_dashed: bool = False


def divided(names: Sequence[str], n_groups: int) -> list[Sequence[str]]:
    """Divide the rows of a bar chart evenly into charts that fit on a page."""
    thickness, gap = _bar_size(n_groups)
    most = max(1, int(_TALLEST / (_NAME_HEIGHT + n_groups * (thickness + gap) + _ROW_GAP)))
    n_charts = -(-len(names) // most)
    size = -(-len(names) // n_charts)
    return [names[start : start + size] for start in range(0, len(names), size)]


def bars(
    title: str, names: Sequence[str], groups: Sequence[dict[str, Bar]], legend: Sequence[str]
) -> Markup:
    """Draw a bar of each group below the name of each row; shares are between 0 and 1.

    The title is read by screen readers.
    """
    thickness, gap = _bar_size(len(groups))
    left, right = 0, WIDTH - 52
    top = _legend_height(legend) + 8
    parts = [_legend(legend, [(number, False) for number in range(len(legend))])]
    for name in names:
        parts.append(_text(left, top + 11, cut(name, 52), "ink", title=name))
        top += _NAME_HEIGHT
        for number, group in enumerate(groups):
            if name in group:
                parts.append(_bar(group[name], number, left, right, top, thickness))
            top += thickness + gap
        top += _ROW_GAP
    limit = left + 0.95 * (right - left)
    start = _legend_height(legend) + 8
    dotted = _rule(limit, start, limit, top - 6, stroke_dasharray="1 3", colour=FAINT, name="faint")
    label = _text(limit, top + 6, "95%", "faint", anchor="middle")
    return _svg(title, [*parts, dotted, label], top + 12)


def _bar_size(n_groups: int) -> tuple[int, int]:
    """Return the thickness of a bar and the gap below it."""
    return (9, 4) if n_groups < 4 else (9, 3)  # the numbers beside the bars need 12


def _bar(bar: Bar, number: int, left: float, right: float, top: float, thickness: int) -> Markup:
    def across(share: float) -> float:
        return left + share * (right - left)

    low, high = map(across, bar.interval)
    middle = top + thickness / 2
    return element(
        "g",
        element("title", bar.tip),
        _box(left, top, right - left, thickness, TRACK, "track"),
        _box(left, top, across(bar.share) - left, thickness, _colour(number), _series(number)),
        _rule(low, middle, high, middle, stroke_width=1.4, colour=INK, name="ink"),
        *(
            _rule(end, middle - 3, end, middle + 3, stroke_width=1.4, colour=INK, name="ink")
            for end in (low, high)
        ),
        _text(WIDTH, top + thickness - 0.5, f"{bar.share:.1%}", "ink", anchor="end"),
    )


def lines(title: str, drawn: Sequence[Line], *, x: str, y: str) -> Markup:
    """Draw lines over a common pair of axes from 0, with labels `x` and `y`."""
    legend = [line.name for line in drawn]
    top, height = _legend_height(legend) + 30, 190
    left, right = 38.0, WIDTH - 18.0  # half of the last label
    values = [value for line in drawn for _, value in line.points]
    values += [limit for line in drawn for interval in line.band or () for limit in interval]
    largest = max(point[0] for line in drawn for point in line.points)
    ticks_x, ticks_y = ticks(largest), ticks(max(values))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = point[0] / max(largest, 1), point[1] / ticks_y[-1]
        return left + (right - left) * across, top + height * (1 - up)

    parts = [_legend(legend, [(line.colour, line.is_dashed) for line in drawn])]
    parts.append(_text(0, top - 13, y, "faint"))
    for tick in ticks_y:
        _, level = place((0, tick))
        parts.append(_rule(left, level, right, level, colour=LINE, name="rule"))
        parts.append(_text(left - 6, level + 4, f"{tick:,g}", "faint", anchor="end"))
    for tick in ticks_x:
        if tick <= largest:
            across, level = place((tick, 0))
            parts.append(_text(across, level + 17, _count(tick), "faint", anchor="middle"))
    parts.append(_text(right, top + height + 33, x, "faint", anchor="end"))
    for line in drawn:
        parts += _line(line, place)
    return _svg(title, parts, top + height + 38)


def _line(line: Line, place: Placement) -> list[Markup]:
    kept = range(0, len(line.points), -(-len(line.points) // _MOST_POINTS))
    chosen = sorted({*kept, len(line.points) - 1})
    points = [line.points[number] for number in chosen]
    parts = []
    if line.band is not None:
        steps = [point[0] for point in points]
        band = [line.band[number] for number in chosen]
        upper = [place((step, high)) for step, (_, high) in zip(steps, band, strict=True)]
        lower = [place((step, low)) for step, (low, _) in zip(steps, band, strict=True)]
        outline = _points([*upper, *reversed(lower)])
        look = {"fill": _colour(line.colour), "fill_opacity": 0.14}
        parts.append(element("polygon", points=outline, class_=_series(line.colour), **look))
    shape: dict[str, object] = {"fill": "none", "stroke_width": 1.8, "stroke_linejoin": "round"}
    shape |= {"stroke": _colour(line.colour), "class_": f"{_series(line.colour)} stroke"}
    shape |= {"stroke_dasharray": "2 3"} if line.is_dashed else {}
    parts.append(element("polyline", points=_points([place(point) for point in points]), **shape))
    if len(points) == 1:
        across, level = place(points[0])
        dot = {"cx": _short(across), "cy": _short(level), "r": 2.5}
        parts.append(
            element("circle", **dot, fill=_colour(line.colour), class_=_series(line.colour))
        )
    return parts


def ticks(high: float, most: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `high`, at most `most` and one more."""
    high = max(high, 1e-9)
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if high / (power * factor) <= most)
    return [round(number * step, 12) for number in range(math.ceil(high / step - 1e-9) + 1)]


def _legend_height(names: Sequence[str]) -> int:
    return 17 * len(names)


def _legend(names: Sequence[str], looks: Sequence[tuple[int, bool]]) -> Markup:
    parts = []
    for row, (name, (number, is_dashed)) in enumerate(zip(names, looks, strict=True)):
        middle = 17 * row + 9
        look = {"colour": _colour(number), "name": f"{_series(number)} stroke"}
        dash = "2 3" if is_dashed else None
        parts.append(_rule(0, middle, 16, middle, **look, stroke_width=4, stroke_dasharray=dash))
        parts.append(_text(22, middle + 4, cut(name, int((WIDTH - 24) / _LETTER)), title=name))
    return element("g", *parts)


def _svg(title: str, parts: Sequence[Markup], height: float) -> Markup:
    box = f"0 0 {WIDTH} {_short(height)}"
    size = {"width": WIDTH, "height": _short(height), "viewBox": box}
    look = {"font_family": _FONT, "font_size": 11.5, "role": "img", "aria_label": title}
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", **size, **look)


def _text(
    x: float, y: float, text: str, name: str = "ink", *, anchor: str = "start", title: str = ""
) -> Markup:
    tip = [element("title", title)] if title not in ("", text) else []
    colour = INK if name == "ink" else FAINT
    where = {"x": _short(x), "y": _short(y), "text_anchor": anchor}
    return element("text", text, *tip, **where, fill=colour, class_=name)


def _rule(
    x1: float, y1: float, x2: float, y2: float, *, colour: str, name: str, **look: object
) -> Markup:
    ends = {"x1": _short(x1), "y1": _short(y1), "x2": _short(x2), "y2": _short(y2)}
    return element("line", **ends, stroke=colour, class_=name, **look)


def _box(x: float, y: float, width: float, height: float, colour: str, name: str) -> Markup:
    size = {"width": _short(max(width, 0)), "height": _short(height)}
    return element("rect", x=_short(x), y=_short(y), **size, rx=1.5, fill=colour, class_=name)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _series(number: int) -> str:
    return f"series-{number % len(COLOURS)}"


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_short(x)},{_short(y)}" for x, y in places)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _count(value: float) -> str:
    """Format a number of steps."""
    if value >= 1_000_000:
        return f"{value / 1e6:g}M"
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:,g}"
