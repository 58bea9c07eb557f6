"""The chart of an analysis has each mark at its value."""

import pytest

from legible import illegible, texts
from tp_transformer.interpret.core.chart import BAND, ChartPanel, Marks, chart, look

SHARES = Marks("shares", look("o", "blue"), [0.1, None, 0.4], [(0.05, 0.2), None, None])
RANGES = Marks("ranges", BAND, [], [(0.2, 0.3)] * 3)
ROWS = ("head 0", "a ↔ b\nn = 20", "the third row, whose name is long")


def test_marks_and_intervals_are_at_their_values_and_rows():
    panels = [
        ChartPanel(rows=ROWS, marks=[SHARES, RANGES], title=title) for title in ("one", "other")
    ]
    drawn = chart(panels, axis="share", caption="of nothing", title="Shares")
    assert [axes.get_title() for axes in drawn.axes] == ["one", "other"]
    for axes in drawn.axes:
        points = {
            round(float(line.get_ydata()[0])): float(line.get_xdata()[0])
            for line in axes.lines
            if line.get_marker() == "o" and len(line.get_xdata())
        }
        assert points == {0: 0.1, 2: 0.4}
        spans = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
        assert set(spans) == {(0, 1), (0.05, 0.2), (0.2, 0.3)}  # the first are between rows


@pytest.mark.parametrize(("n_panels", "row"), [(1, 0.16), (12, 0.16), (1, 0.5)])
@pytest.mark.parametrize(
    ("least", "is_log"), [(0.0, False), (0.0, True), (0.001, True), (0.2, True)]
)
def test_charts_of_any_size_can_be_read(n_panels, row, least, is_log):
    zero = Marks("zero has no logarithm", look("x", "red"), [least, 0.9, 1.0])
    panel = ChartPanel(rows=[f"head {head}" for head in range(3)], marks=[SHARES, RANGES, zero])
    title = "A title that is too long for a single line of the figure"
    drawn = chart([panel] * n_panels, axis="share", caption="", title=title, row=row, is_log=is_log)
    assert not illegible(drawn, texts(drawn))
