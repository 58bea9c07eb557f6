"""Results as tables, documents, frames and figures: ours beside the paper's, told apart."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import tp_transformer as tpt
from legible import illegible, texts
from scores import made_up
from tp_transformer import figures
from tp_transformer.cli import main
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.errors import ResultsError, UserError
from tp_transformer.report.charts import save_bars
from tp_transformer.report.comparison import Comparison, pair_line
from tp_transformer.report.terminal import interval_bar, render_results
from tp_transformer.scoring.compare import OURS, PAPER, caveats, named_apart, pairs, rows
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.scoring.results import Results
from tp_transformer.scoring.statistics import holm, wilson

ONE, TWO = made_up("ours"), made_up("theirs", seed=2, better=-0.08)


def printed(results, width):
    """What `tpt evaluate` prints of results, or `tpt compare` of several."""
    console = Console(width=width, highlight=False, file=io.StringIO())
    if isinstance(results, Results):
        render_results(results, console)
    else:
        Comparison(*results).render(console)
    return console.file.getvalue()


def csv_rows(*results):
    return list(csv.DictReader(io.StringIO(Comparison(*results).to_csv())))


@pytest.mark.parametrize("width", [80, 120])
def test_every_module_is_shown_whole_with_how_sure_it_is(width):
    text = printed(ONE, width)
    assert max(map(len, text.splitlines())) <= width
    for split in ("interpolate", "extrapolate"):
        for name, score in ONE.splits[split].modules.items():
            low, high = score.interval
            line = rf"  {name} .*{score.accuracy:.1%} +{low:.1%} - {high:.1%}"
            assert re.search(line, text), name
    assert "…" not in text


def test_the_loss_is_shown_at_80_columns():
    """Also where names and numbers are as long as they get."""
    some = {name: modules[:-1] for name, modules in MATHEMATICS.splits.items()}
    text = printed(made_up("ours", splits=some, skill=1.0), 80)
    averages = text[text.index("average over") :]
    assert re.search(r"questions +loss$", averages, re.MULTILINE)
    assert len(re.findall(r" 0\.250$", averages, re.MULTILINE)) == len(some)
    assert max(map(len, averages.splitlines())) <= 80


def test_modules_are_sorted_into_strong_and_weak():
    text = printed(ONE, 80)
    text = text[text.index("Interpolation") : text.index("Extrapolation")]
    strong, rest = text.split("in between")
    middle, weak = rest.split("weak: ")
    for name, score in ONE.splits["interpolate"].modules.items():
        part = strong if score.accuracy > 0.95 else middle if score.accuracy > 0.5 else weak
        assert f"  {name} " in part
    split = ONE.splits["interpolate"]
    sure = f"({split.above_95}, {split.surely_above_95} of them surely)"
    assert f"strong: above 95% {sure}" in strong


@pytest.mark.parametrize("right", [0, 1, 50, 99, 100])
def test_a_bar_is_as_long_as_the_accuracy_surely_is(right):
    low, high = wilson(right, 100)
    bar = interval_bar((low, high), 50).plain
    assert len(bar) == 50
    assert bar.count("█") == round(low * 50)
    assert bar.count("█") + bar.count("▒") == pytest.approx(high * 50, abs=0.51)


def test_the_papers_rows_are_the_papers_and_ours_are_ours():
    found = rows([ONE, TWO])
    papers = [row for row in found if row.source == PAPER]
    assert [row.name for row in papers] == [row.name for row in TABLE_1.values()]
    for row, printed in zip(papers, TABLE_1.values(), strict=True):
        assert row.cells["interpolate"].accuracy == printed.interpolation
        assert row.cells["extrapolate"].above_95 == printed.extrapolation_above_95
        assert row.cells["interpolate"].interval is None
    ours = [row for row in found if row.source == OURS]
    assert [row.name for row in ours] == ["ours", "theirs"]
    modules = ONE.splits["interpolate"].modules.values()
    cell = ours[0].cells["interpolate"]
    assert cell.accuracy == pytest.approx(np.mean([one.verdicts.mean() for one in modules]))
    assert cell.above_95 == sum(one.verdicts.mean() > 0.95 for one in modules)
    assert (ours[0].weights, ours[0].steps) == ("49.2M", 700_000)


@pytest.mark.parametrize("width", [80, 120])
def test_the_comparison_labels_who_measured_what(width):
    text = printed([ONE, TWO], width)
    assert max(map(len, text.splitlines())) <= width
    markdown = Comparison(ONE, TWO).to_markdown()
    assert (
        "| TP-Transformer | paper | 49.1M | 1000k | 89.01% | 81.92% | 18 | 54.67% | 3 |" in markdown
    )
    assert "| ours | measured | 49.2M | 700k |" in markdown
    table = " ".join(text[text.index("Table 1 ─") :].split())
    paper, ours = table.split("measured here")
    assert "as printed in the paper" in paper
    assert "TP-Transformer 49.1M 1000k 89.01% 81.92% 18 54.67% 3" in paper
    average = f"{ONE.splits['interpolate'].average[0]:.2%}"
    assert average in ours
    assert average not in paper
    for name in MATHEMATICS.splits["interpolate"]:
        assert f"\n{name} " in text


def test_names_that_clash_are_told_apart():
    assert [one.name for one in named_apart([ONE, TWO, ONE])] == ["ours (1)", "theirs", "ours (2)"]


FEW = made_up("few", splits={"interpolate": MATHEMATICS.splits["interpolate"][:3]})


def test_what_is_not_comparable_is_said():
    line = (
        "few: interpolate covers 3 of 56 modules and has 400 questions of each module, not 10,000"
    )
    assert caveats([FEW]) == [line]
    assert "Not fully comparable: few" in printed([FEW], 120)
    assert f"\\footnotesize Not fully comparable: {line}." in Comparison(FEW).to_latex()
    notes = [x["note"] for x in csv_rows(FEW) if x["kind"] == "note"]
    assert notes == [line]
    assert line in Comparison(FEW).to_markdown()
    other = made_up("other", splits={"interpolate": MATHEMATICS.splits["interpolate"][3:6]})
    assert "interpolate: the averages are not all over the same modules" in caveats([FEW, other])


def test_what_is_as_published_is_comparable():
    whole = made_up("whole", n=10_000)
    assert caveats([whole]) == []
    for text in (
        Comparison(whole).to_latex(),
        Comparison(whole).to_markdown(),
        Comparison(whole).to_csv(),
    ):
        assert "omparable" not in text
        assert " of 56" not in text
    generated = Results(**{**vars(whole), "data": {**whole.data, "kind": "generated"}})
    assert caveats([generated]) == ["whole: the questions were generated, not the published ones"]


def test_an_average_over_some_modules_says_so_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    average = f"{FEW.splits['interpolate'].average[0]:.2%}"
    terminal = printed([ONE, FEW], 80)
    assert re.search(r"3 of 56\s+modules", terminal[terminal.index("Table 1 ─") :])
    assert "Interpolation (3 of 56)" in printed(FEW, 80)
    assert re.search(
        rf"\| {average} ±[\d.]+% \(3 of 56 modules\) \|", Comparison(ONE, FEW).to_markdown()
    )
    assert "(3 of 56 modules)" in Comparison(ONE, FEW).to_latex()
    (line,) = [x for x in csv_rows(ONE, FEW) if (x["kind"], x["model"]) == ("average", "few")]
    assert (line["n_modules"], line["n"]) == ("3", "1200")
    save_bars([ONE, FEW], tmp_path)
    svg = (tmp_path / "accuracy-interpolate.svg").read_text()
    assert f"few ({average} on average over 3 of 56 modules)" in svg
    assert "on average over 56" not in svg


@pytest.mark.parametrize(
    "name",
    ["run[/x]", "[bold]x", "cost$x^$", "_hidden", "two\nlines", "a|b", "\x1b[31mred", "\udcff"],
)
def test_any_name_can_be_shown(tmp_path, monkeypatch, name):
    """Names come from folders, which may be called anything."""
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    few = {"extrapolate": MATHEMATICS.splits["extrapolate"][:3]}
    one, other = made_up(name, splits=few), made_up("other", splits=few, seed=1)
    text = printed([one, other], 120)
    assert "\x1b" not in text
    assert one.name in text
    if name.isprintable():
        assert one.name == name
    text = Comparison(one, other).to_markdown()
    text.encode()
    for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1
    assert (
        Comparison(one).to_latex().count(r"\end{tabular}")
        == Comparison(one).to_csv().count("kind,source")
        == 1
    )
    save_bars([one, other], tmp_path)
    svg = (tmp_path / "accuracy-extrapolate.svg").read_text()
    assert f"{one.name} (" in svg


@pytest.mark.parametrize("n_results", [2, 5, 9])
def test_many_results_are_told_apart_in_a_narrow_terminal(n_results):
    long = [made_up(f"a-run-with-a-rather-long-name-{i}", seed=i) for i in range(n_results)]
    text = printed(long, 80)
    assert max(map(len, text.splitlines())) <= 80
    before = text[: text.index("Extrapolation ─")]
    for number, one in enumerate(long, 1):
        assert f"({number}) {one.name}" in before
        for name, score in one.splits["interpolate"].modules.items():
            assert re.search(rf"^{name} .*{score.accuracy:.1%}", before, re.MULTILINE)
    assert "…" not in before


def test_pairs_are_of_the_same_questions():
    found = {one.split: one for one in pairs(ONE, [TWO])[0]}["interpolate"]
    ours, theirs = (one.splits["interpolate"].modules for one in (ONE, TWO))
    for name, one in found.modules.items():
        expected = ours[name].accuracy - theirs[name].accuracy
        assert one.agreement.difference == pytest.approx(expected)
        assert one.p <= one.p_holm
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.p < 1e-6
    assert "by sign flips within modules" in pair_line(found, "ours", "theirs")
    back = {one.split: one for one in pairs(TWO, [ONE])[0]}["interpolate"]
    assert back.difference == pytest.approx(-found.difference)
    same = pairs(ONE, [ONE])[0][0]
    assert same.p == same.p_holm == 1
    assert not any(one.is_sure for one in same.modules.values())


def test_the_averages_p_values_are_adjusted_over_splits_and_opponents():
    others = [made_up(f"other {seed}", seed=seed, better=-0.002 * seed) for seed in (2, 3, 4)]
    found = pairs(ONE, others)
    assert [len(of_other) for of_other in found] == [3, 3, 3]
    flat = [one for of_other in found for one in of_other]
    assert [one.p_holm for one in flat] == holm([one.p for one in flat])
    alone = [one for other in others for one in pairs(ONE, [other])[0]]
    assert [one.p for one in flat] == [one.p for one in alone]
    # Near the limit the number of comparisons decides, in every format.
    decided = next(i for i, one in enumerate(flat) if one.p < 0.05 <= one.p_holm)
    one, other = flat[decided], others[decided // 3]
    p = f"p = {one.p_holm:.4f}" if one.p_holm < 0.1 else f"p = {one.p_holm:.2f}"
    assert p in pair_line(one, "ours", other.name)
    assert p in " ".join(printed([ONE, *others], 120).split())
    assert p in Comparison(ONE, *others).to_markdown()
    (line,) = (
        line
        for line in csv_rows(ONE, *others)
        if (line["kind"], line["versus"], line["split"]) == ("difference", other.name, one.split)
    )
    assert (float(line["p"]), float(line["p_holm"])) == (one.p, one.p_holm)


def test_other_questions_are_not_paired():
    other = Results.from_json(json.loads(json.dumps(TWO.to_json())))
    modules = other.splits["interpolate"].modules
    changed = next(iter(modules))
    modules[changed] = replace(modules[changed], sha256="other")
    found = {one.split: one for one in pairs(ONE, [other])[0]}["interpolate"]
    assert found.left_out == (changed,)
    assert changed not in found.modules
    nothing = made_up("x", splits={"interpolate": ()})
    assert pairs(ONE, [Results(**{**vars(nothing), "splits": {}})]) == [[]]


def test_csv_has_every_number():
    lines = csv_rows(ONE, TWO)
    averages = [line for line in lines if line["kind"] == "average"]
    assert len(averages) == 2 * 2 + 4 * 3 + 2 * 3  # Saxton et al. give no training accuracy
    found = {(x["model"], x["split"], x["module"]): x for x in lines if x["kind"] == "module"}
    assert len(found) == 2 * (56 + 56 + 15)
    for (model, split, name), line in found.items():
        score = (ONE if model == "ours" else TWO).splits[split].modules[name]
        assert int(line["right"]) == score.right
        assert float(line["accuracy"]) == score.accuracy
        assert float(line["low"]) == score.interval[0]
    differences = [line for line in lines if line["kind"] == "module difference"]
    assert len(differences) == 56 + 56 + 15
    expected = {one.split: one.modules for one in pairs(ONE, [TWO])[0]}
    for line in differences:
        assert float(line["p_holm"]) == expected[line["split"]][line["module"]].p_holm


def test_latex_is_balanced_and_escaped():
    text = Comparison(made_up("a_b & 50%"), TWO).to_latex()
    assert r"a\_b \& 50\%" in text
    for name in ("tabular", "longtable"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") > 0
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    first_table = body[: body.index(next(x for x in body if x.startswith("Module")))]
    for line in first_table:
        n_cells = len(re.findall(r"(?<!\\)&", line))
        if "multicolumn" not in line:
            assert n_cells == 7, line


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_compiles(tmp_path):
    body = Comparison(ONE, TWO).to_latex()
    head = "\\documentclass{article}\\usepackage{booktabs,longtable}\\begin{document}\n"
    (tmp_path / "t.tex").write_text(head + body + "\\end{document}\n")
    command = ["pdflatex", "-interaction=batchmode", "-halt-on-error", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)


def test_results_are_read_as_they_were_written(tmp_path):
    ONE.save(tmp_path / "r.json")
    again = Results.read(tmp_path / "r.json")
    assert again.to_json() == ONE.to_json()
    again.save(tmp_path / "s.json")
    assert (tmp_path / "s.json").read_bytes() == (tmp_path / "r.json").read_bytes()


def module_of(values):
    return values["splits"]["train"]["modules"]["numbers__gcd"]


def damaged(change):
    values = json.loads(json.dumps(ONE.to_json()))
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "is not a results file"),
        (damaged(lambda v: v.update(version=7)), "version 7"),
        (damaged(lambda v: v.pop("model")), "is damaged"),
        (damaged(lambda v: v["model"].update(step=float("inf"))), "is damaged"),
        (damaged(lambda v: module_of(v).update(right=1)), "verdicts are right, not 1"),
        (damaged(lambda v: module_of(v).update(n=7)), "50 bytes of verdicts on 7"),
        (damaged(lambda v: v["splits"].update(nonsense=v["splits"]["train"])), "is damaged"),
    ],
)
def test_damaged_results_are_refused(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ResultsError, match=message):
        Results.read(tmp_path / "r.json")


def test_figures_are_saved_in_every_format_and_repeatably(tmp_path, capsys):
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    ONE.save(files[0])
    TWO.save(files[1])
    for folder in ("a", "b"):
        main(["compare", *map(str, files), "--format=csv", "--figures", str(tmp_path / folder)])
    captured = capsys.readouterr()
    assert captured.out.startswith("kind,source,model")
    names = {f"accuracy-{s}.{f}" for s in ("interpolate", "extrapolate") for f in figures.FORMATS}
    assert {file.name for file in (tmp_path / "a").iterdir()} == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    starts = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    for kind, start in starts.items():
        assert (tmp_path / "a" / f"accuracy-interpolate.{kind}").read_bytes().startswith(start)
    svg = (tmp_path / "a" / "accuracy-extrapolate.svg").read_text()
    assert all(name in svg for name in MATHEMATICS.splits["extrapolate"])
    assert "ours" in svg


@pytest.mark.parametrize("n_results", [1, 4])
def test_bars_can_be_read(tmp_path, monkeypatch, n_results):
    seen = []

    def look(drawn, folder, name):
        seen.append(name)
        assert drawn.get_figwidth() == figures.PAGE
        assert not illegible(drawn, texts(drawn))
        return []

    monkeypatch.setattr(figures, "save", look)
    save_bars([made_up(f"a-model-{i}", seed=i) for i in range(n_results)], tmp_path)
    assert seen == ["accuracy-interpolate", "accuracy-extrapolate"]


SPLITS = {"train": ("numbers__gcd",), "interpolate": ("numbers__gcd", "numbers__lcm")}
FIRST = made_up("one", splits=SPLITS)
SECOND = made_up("two", splits=SPLITS, seed=2, better=-0.1)
NAMED = made_up("<b>$x_1$</b>", splits=SPLITS)


def test_results_are_frames():
    frame = FIRST.frame()
    assert len(frame) == 3
    scores = [(s, m, one) for s, split in FIRST.splits.items() for m, one in split.modules.items()]
    for row, (split, module, score) in zip(frame.itertuples(), scores, strict=True):
        assert (row.model, row.split, row.module) == ("one", split, module)
        assert (row.n, row.right, row.accuracy) == (score.n, score.right, score.accuracy)
        assert (row.low, row.high, row.loss) == (*score.interval, score.loss)


def test_a_terminal_of_another_encoding_is_no_reason_to_stop(tmp_path):
    ONE.save(tmp_path / "r.json")
    command = [sys.executable, "-m", "tp_transformer", "compare", str(tmp_path / "r.json")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Table 1" in done.stdout


def test_figures_name_what_they_need(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ONE.save(tmp_path / "r.json")
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(tmp_path / "r.json"), "--figures", str(tmp_path / "f")])
    assert "tpt: figures need matplotlib" in capsys.readouterr().err


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'tp-transformer\[pandas\]'"):
        FIRST.frame()


def test_results_are_short_as_text_and_in_notebooks():
    (average, _), n = FIRST.splits["interpolate"].average, FIRST.splits["interpolate"].n
    assert f"interpolate {average:.1%} of {n} questions" in repr(FIRST)
    assert len(repr(FIRST)) < 200
    page = NAMED._repr_html_()
    assert "Results of &lt;b&gt;$x_1$&lt;/b&gt;" in page
    assert "<b>$" not in page
    assert f"<td>Interpolation</td><td>{NAMED.splits['interpolate'].average[0]:.2%}</td>" in page


def test_a_comparison_is_a_frame_with_what_the_command_writes(tmp_path, capsys):
    for one in (FIRST, SECOND):
        one.save(tmp_path / f"{one.name}.json")
    compared = tpt.compare(FIRST, tmp_path / "two.json")
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
    for one in (FIRST, SECOND):
        one.save(tmp_path / f"{one.name}.json")
    main(["compare", str(tmp_path / "one.json"), str(tmp_path / "two.json")])
    assert str(tpt.compare(FIRST, SECOND)) == capsys.readouterr().out
    assert repr(tpt.compare(FIRST, SECOND)) == "Comparison(one, two; mathematics)"


def test_a_comparison_in_a_notebook():
    compared = tpt.compare(FIRST, NAMED, FIRST)
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
    plots = tpt.plot(FIRST, SECOND)
    assert list(plots) == ["interpolate"]
    (axes,) = plots["interpolate"].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["numbers__gcd", "numbers__lcm"]
    widths = sorted(bar.get_width() for bar in axes.patches)
    scores = [one.splits["interpolate"].modules for one in (FIRST, SECOND)]
    accuracies = [100 * score.accuracy for modules in scores for score in modules.values()]
    assert np.allclose(widths, sorted(accuracies))
