"""The report as a file: what it finds, what it says, what it refuses."""

import html
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from documents import ROOT, blocks
from reports import HOSTILE, SVG, hostile_results, write_analysis, write_bench, write_run
from runs import tpt
from scores import made_up
from tp_transformer.errors import ResultsError, SettingsError, UserError
from tp_transformer.report.page import write_report
from tp_transformer.scoring.published import TABLE_1


def text_of(page):
    """The text of a page between its tags."""
    body = page[page.index("<main") : page.index("</main>")]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body)))


def test_every_kind_of_input_has_its_section(report, material):
    assert report.sections == (
        *("Table 1", "Modules", "Mistakes", "Runs", "Learning curves"),
        *("Roles", "Attention", "Surgery", "Bench"),
    )
    named = {path.relative_to(material).as_posix() for path in report.sources}
    assert named == {
        *("results/first.json", "results/second.json", "runs/tiny", "bench/bench.json"),
        *("analysis/roles.json", "analysis/attention-encoder.json", "analysis/surgery.json"),
    }
    assert report.unreadable == {}


def test_table_1_has_the_rows_of_the_paper_and_ours_labelled(report):
    page = report.file.read_text("utf-8")
    for row in TABLE_1.values():
        found = re.search(rf"<tr><td[^>]*>{re.escape(row.name)}</td>(.*?)</tr>", page)[1]
        cells = re.findall(r"<td[^>]*>(.*?)</td>", found)
        shown = f"{row.interpolation:.2%}", f"{row.extrapolation:.2%}"
        assert (cells[0], cells[1], cells[4], cells[6]) == ("paper", row.weights, *shown)
    for results in (made_up("first", n=40), made_up("second", seed=1, better=-0.1, n=40)):
        found = re.search(rf"<tr><td[^>]*>{results.name}</td>(.*?)</tr>", page)[1]
        cells = re.findall(r"<td[^>]*>(.*?)</td>", found)
        average, (low, high) = results.splits["interpolate"].average
        assert cells[0] == "measured"
        assert cells[4] == f"{average:.2%}<br>±{(high - low) / 2:.2%}"
    assert "has 40 questions of each module, not 10,000" in text_of(page)


def test_analyses_show_findings_tables_figures_and_commands(report):
    page = text_of(report.file.read_text("utf-8"))
    for words in (
        "What surgery found.",
        "tiny after 1,200 steps",
        "48 questions of quotients; analysis seed 3; analysis/roles.json",
        "Made by tpt interpret attention-encoder --out analysis",
        "Made by tpt train --config runs/tiny/config.yaml --data runs/data --run runs/tiny",
        "Made by tpt bench --tasks scan",
        "The file does not record the command that made it.",
        "What is drawn.",
        "error on 64 questions, held out of training: 50.00% at step 500, 25.00% at step 1,000",
        "+12.5 (p 0.25; <0.001)",
        "32,000 (1 of 2)",
    ):
        assert words in page, words


def test_the_same_inputs_give_the_same_file_wherever_they_are(material, report, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(material, copy)
    (copy / "report.html").unlink()
    origin = copy / "runs" / "tiny" / "run.json"
    values = json.loads(origin.read_text("utf-8"))
    origin.write_text(json.dumps({**values, "data": str(copy / "runs" / "data")}), "utf-8")
    again = write_report([copy], copy / "report.html")
    assert again.file.read_bytes() == report.file.read_bytes()


def test_nothing_is_loaded_from_elsewhere_and_no_time_is_written(report):
    page = report.file.read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert not re.search(r"url\((?!#)|@import", page)
    assert "'unsafe" not in page


def test_texts_of_files_are_escaped(tmp_path):
    hostile_results().save(tmp_path / "results.json")
    folder = tmp_path / "a<b>&'\""
    write_analysis(folder, summary=[HOSTILE], model={"name": HOSTILE, "step": None})
    write_run(tmp_path / "<i>run")
    page = write_report([tmp_path], tmp_path / "report.html").file.read_text("utf-8")
    assert HOSTILE not in page
    assert page.count("<script") == page.count("</script>") == 1
    assert page.count("</style>") == 1
    shown = text_of(page)
    assert shown.count(HOSTILE) >= 8  # name, module, split, question, answers, command, findings
    assert "a<b>&'\"/roles.json" in shown
    assert "<i>run" in shown


def test_charts_are_svg_with_tooltips_that_the_policy_admits(report):
    page = report.file.read_text("utf-8")
    charts = [ET.fromstring(chart) for chart in re.findall(r"<svg.*?</svg>", page, re.S)]  # noqa: S314, our own
    labels = [chart.get("aria-label") for chart in charts]
    assert [label.partition(":")[0] for label in labels[:2]] == ["Interpolation", "Extrapolation"]
    assert len(charts) == 2 + 2
    assert not any("style" in part.attrib for chart in charts for part in chart.iter())
    titles = [part.text for part in charts[1].iter("{http://www.w3.org/2000/svg}title")]
    score = made_up("first", n=40).splits["extrapolate"].modules["arithmetic__mul_big"]
    assert len(titles) == 2 * 15
    assert any(
        title.startswith(f"arithmetic__mul_big: {score.right} of 40 correct") for title in titles
    )


def test_without_matplotlib_the_charts_are_replaced_by_a_note(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = write_run(tmp_path / "run")
    page = write_report([run], tmp_path / "report.html").file.read_text("utf-8")
    assert "figures need matplotlib: pip install &#x27;tp-transformer[interpret]&#x27;" in page
    assert "50.00% at step 500" in page


def test_results_of_several_tasks_have_sections_of_their_own(tmp_path):
    made_up("ours", n=40).save(tmp_path / "a.json")
    other = hostile_results()
    replace(other, model={**other.model, "name": "other"}).save(tmp_path / "b.json")
    found = write_report([tmp_path], tmp_path / "report.html")
    assert found.sections[:2] == ("Table 1 (mathematics)", "Modules (mathematics)")
    assert f"Averages ({HOSTILE})" in found.sections


def test_a_run_without_a_validation_has_no_error_curve(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    assert write_report([run], tmp_path / "report.html").sections == ("Runs",)


def test_the_command_of_a_run_names_the_model_that_it_began_with(tmp_path):
    run = write_run(
        tmp_path / "run", init_from={"folder": str(tmp_path / "other run" / "best"), "sha256": "0"}
    )
    page = text_of(write_report([run], tmp_path / "report.html").file.read_text("utf-8"))
    assert "--data data --run run --init-from 'other run/best'" in page


def test_stores_models_and_checkpoints_are_not_searched(tmp_path):
    run = write_run(tmp_path / "run")
    for folder in (run / "checkpoints" / "step-1", run / "best-models", tmp_path / ".hidden"):
        folder.mkdir(parents=True)
        (folder / "x.json").write_text("{", "utf-8")
    for name in ("store.json", "model.safetensors"):
        write_analysis(tmp_path / name.partition(".")[0])
        (tmp_path / name.partition(".")[0] / name).write_text("{}", "utf-8")
    found = write_report([tmp_path], tmp_path / "report.html")
    assert found.sources == (run,)
    assert found.unreadable == {}


def test_the_runs_of_a_bench_are_only_in_its_table(tmp_path):
    folder = write_bench(tmp_path / "bench")
    write_run(folder / "runs" / "one")
    assert write_report([folder], tmp_path / "report.html").sections == ("Bench",)


def test_a_bench_of_another_program_hides_nothing(tmp_path):
    (tmp_path / "bench.json").write_text('{"format": "google-benchmark"}')
    run = write_run(tmp_path / "runs" / "one")
    assert write_report([tmp_path], tmp_path / "report.html").sources == (run,)


def test_a_path_named_twice_is_shown_once(tmp_path):
    made_up("ours", n=40).save(tmp_path / "a.json")
    found = write_report([tmp_path, tmp_path / "a.json"], tmp_path / "report.html")
    assert "ours (2)" not in found.file.read_text("utf-8")


def test_an_analysis_that_is_not_registered_is_shown_too(tmp_path):
    write_analysis(tmp_path, "norms")
    found = write_report([tmp_path / "norms.json"], tmp_path / "report.html")
    assert found.sections == ("Norms",)


def test_figures_outside_of_the_folder_are_not_read(tmp_path):
    (tmp_path / "secret.svg").write_text(SVG, "utf-8")
    for name in ("../secret", str(tmp_path / "secret")):
        write_analysis(tmp_path / "analysis", captions={name: ""})
        with pytest.raises(ResultsError, match="is damaged"):
            write_report([tmp_path / "analysis"], tmp_path / "report.html")
    write_analysis(tmp_path / "analysis", captions={"absent": ""})
    page = write_report([tmp_path / "analysis"], tmp_path / "report.html").file
    assert "<img" not in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be shown: it is damaged or not JSON"),
        ("[]", "cannot be shown: it has no JSON object"),
        ("[" * 100_000, "cannot be shown: it is damaged or not JSON"),
        ("{}", "is not a run, results or an analysis, and contains none"),
        ('{"format": "tp-transformer-results"}', "has results of version None"),
        ('{"format": "tp-transformer-bench", "rows": [1]}', "is damaged"),
        ('{"analysis": 1, "model": 1, "sample": 1, "summary": 1}', "is damaged"),
    ],
)
def test_files_that_cannot_be_shown_are_refused_in_one_line(tmp_path, content, said):
    file = tmp_path / "file.json"
    file.write_text(content, "utf-8")
    with pytest.raises(ResultsError, match=re.escape(said)) as raised:
        write_report([file], tmp_path / "report.html")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report.html").exists()


def test_a_folder_with_an_unreadable_file_names_it(tmp_path, capsys):
    made_up("ours", n=40).save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{", "utf-8")
    out = str(tmp_path / "report.html")
    code, said, errors = tpt(capsys, "report", str(tmp_path), "--out", out)
    assert code == 0
    assert said == f"{out}: 3 sections; open it in a browser, it needs no network\n"
    assert errors == f"tpt: {tmp_path / 'b.json'} is not shown: it is damaged or not JSON\n"


@pytest.mark.parametrize(("path", "said"), [("absent", "does not exist"), (".", "contains none")])
def test_bad_arguments_end_in_one_line_and_code_2(tmp_path, capsys, path, said):
    out = tmp_path / "report.html"
    code, _, errors = tpt(capsys, "report", str(tmp_path / path), "--out", str(out))
    assert (code, errors.count("\n"), said in errors) == (2, 1, True)
    with pytest.raises(SettingsError, match="nothing to report on"):
        write_report([], out)
    assert not out.exists()


def test_only_a_report_is_replaced(tmp_path):
    made_up("ours", n=40).save(tmp_path / "a.json")
    out = tmp_path / "page.html"
    out.write_text("<html>my own page</html>", "utf-8")
    with pytest.raises(SettingsError, match="exists and is not a page of the report"):
        write_report([tmp_path / "a.json"], out)
    assert out.read_text("utf-8") == "<html>my own page</html>"
    first = write_report([tmp_path / "a.json"], out, overwrite=True).file.read_bytes()
    made_up("other", n=40).save(tmp_path / "a.json")
    assert write_report([tmp_path / "a.json"], out).file.read_bytes() != first
    with pytest.raises(SettingsError, match="is a file, not a folder"):
        write_report([tmp_path / "a.json"], out / "page.html")
    with pytest.raises(SettingsError, match="is a folder"):
        write_report([tmp_path / "a.json"], tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.json", "{", "is damaged or not JSON"),
        ("config.yaml", "[", "config.yaml"),
        (
            "metrics.jsonl",
            '{"kind": "monitor", "step": 7, "loss": 1, "exact_match": 2, "n": 64, "split": "x"}',
            "is damaged: a validation at step 7",
        ),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(tmp_path, name, content, said):
    run = write_run(tmp_path / "run")
    (run / name).write_text(content, "utf-8")
    with pytest.raises(UserError, match=re.escape(said)) as raised:
        write_report([run], tmp_path / "report.html")
    assert "\n" not in str(raised.value)


def test_half_a_character_is_replaced(tmp_path):
    write_analysis(tmp_path, summary=["\ud800"])
    page = write_report([tmp_path], tmp_path / "report.html").file.read_text("utf-8")
    assert "<li>?</li>" in page


def test_the_python_of_its_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "one")
    made_up("ours", n=40).save("first.json")
    code = blocks("python", (ROOT / "docs" / "report.md").read_text("utf-8"))[0]
    names = {}
    exec(compile(code, "report.md", "exec"), names)  # noqa: S102
    assert names["report"].sections == (
        *("Table 1", "Modules", "Mistakes", "Runs", "Learning curves"),
    )
