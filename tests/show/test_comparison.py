"""Results in Python: frames, figures, notebooks, comparisons."""

import csv
import io
import sys

import numpy as np
import pytest

import tp_transformer as tpt
from scores import made_up
from tp_transformer.cli import main
from tp_transformer.errors import ResultsError, UserError

SPLITS = {"train": ("numbers__gcd",), "interpolate": ("numbers__gcd", "numbers__lcm")}
ONE = made_up("one", splits=SPLITS)
TWO = made_up("two", splits=SPLITS, seed=2, better=-0.1)
NAMED = made_up("<b>$x_1$</b>", splits=SPLITS)


def test_results_are_frames():
    frame = ONE.frame()
    assert len(frame) == 3
    scores = [(s, m, one) for s, split in ONE.splits.items() for m, one in split.modules.items()]
    for row, (split, module, score) in zip(frame.itertuples(), scores, strict=True):
        assert (row.model, row.split, row.module) == ("one", split, module)
        assert (row.n, row.right, row.accuracy) == (score.n, score.right, score.accuracy)
        assert (row.low, row.high, row.loss) == (*score.interval, score.loss)


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'tp-transformer\[pandas\]'"):
        ONE.frame()


def test_results_are_short_as_text_and_in_notebooks():
    (average, _), n = ONE.splits["interpolate"].average, ONE.splits["interpolate"].n
    assert f"interpolate {average:.1%} of {n} questions" in repr(ONE)
    assert len(repr(ONE)) < 200
    page = NAMED._repr_html_()
    assert "Results of &lt;b&gt;$x_1$&lt;/b&gt;" in page
    assert "<b>$" not in page
    assert f"<td>Interpolation</td><td>{NAMED.splits['interpolate'].average[0]:.2%}</td>" in page


def test_a_comparison_is_a_frame_with_what_the_command_writes(tmp_path, capsys):
    for one in (ONE, TWO):
        one.save(tmp_path / f"{one.name}.json")
    compared = tpt.compare(ONE, tmp_path / "two.json")
    main(["compare", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--format=csv"])
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    frame = compared.frame()
    assert list(frame.columns) == list(lines[0])
    assert frame["kind"].tolist() == [line["kind"] for line in lines]
    printed = [float(line["accuracy"] or "nan") for line in lines]
    assert np.array_equal(frame["accuracy"], printed, equal_nan=True)
    differences = frame[frame["kind"] == "difference"]
    assert differences["split"].tolist() == ["train", "interpolate"]
    assert (differences["accuracy"] > 0).all()
    assert compared.to_csv().splitlines()[0] == ",".join(frame.columns)
    assert "| one | measured |" in compared.to_markdown()
    assert "tabular" in compared.to_latex()


def test_a_comparison_as_text_is_what_the_command_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for one in (ONE, TWO):
        one.save(tmp_path / f"{one.name}.json")
    main(["compare", str(tmp_path / "one.json"), str(tmp_path / "two.json")])
    assert str(tpt.compare(ONE, TWO)) == capsys.readouterr().out
    assert repr(tpt.compare(ONE, TWO)) == "Comparison(one, two; mathematics)"


def test_a_comparison_in_a_notebook():
    compared = tpt.compare(ONE, NAMED, ONE)
    page = compared._repr_html_()
    assert "<b>$" not in page
    assert page.count("<td>paper</td>") >= 6
    assert "<td>one (1)</td>" in page
    assert "<td>one (2)</td>" in page
    assert "one (1) minus &lt;b&gt;$x_1$&lt;/b&gt;, Interpolation: +0.00 points" in page
    assert len(compared.differences) == 4


def test_nothing_to_compare_is_refused():
    with pytest.raises(ResultsError, match="at least one result"):
        tpt.compare()


def test_results_are_figures():
    plots = tpt.plot(ONE, TWO)
    assert list(plots) == ["interpolate"]
    (axes,) = plots["interpolate"].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["numbers__gcd", "numbers__lcm"]
    widths = sorted(bar.get_width() for bar in axes.patches)
    scores = [one.splits["interpolate"].modules for one in (ONE, TWO)]
    accuracies = [100 * score.accuracy for modules in scores for score in modules.values()]
    assert np.allclose(widths, sorted(accuracies))
