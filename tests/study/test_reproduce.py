"""`tpt reproduce`, at toy size: resumed as undisturbed, refusals, the plan, the bands."""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import runs
from tp_transformer import figures
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.study import engine
from tp_transformer.study import reproduce as reproduction
from tp_transformer.study.reproduce import Reproduction, reproduce
from tp_transformer.study.scales import Scale, ScaleRow

TOY = Scale(
    name="toy",
    rows=(
        ScaleRow(name="transformer", preset="transformer-tiny"),
        ScaleRow(
            name="tp-transformer",
            preset="tp-transformer-tiny",
            analyses=("tensor-product", "roles"),
        ),
    ),
    modules=("numbers__gcd", "numbers__place_value"),
    seeds=(3,),
    settings={**runs.SETTINGS, "training.steps": 8},
    analysed_module="numbers__gcd",
    analysed=8,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.make_store(tmp_path_factory.mktemp("questions") / "data", interpolate=(8, 8))


@pytest.fixture(autouse=True, scope="module")
def forked():
    """Training processes are forked, and looked at often."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine.subprocess, "Popen", runs.Forked)
        patched.setattr(engine, "_SECONDS_BETWEEN_LOOKS", 0.01)
        patched.setattr(reproduction, "runs_at_once", lambda: 1)
        yield


def said(work):
    file = io.StringIO()
    reproduce(work, Console(file=file, width=100))
    return file.getvalue()


def raising(function, condition):
    """The function, which is interrupted at its end where a condition holds."""

    def interrupted(*given, **options):
        result = function(*given, **options)
        if condition():
            raise KeyboardInterrupt
        return result

    return interrupted


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data, forked):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        text = said(Reproduction(scale=TOY, out=Path("out"), data=data))
    return folder / "out", text


def test_interrupted_and_resumed_gives_the_same_report(tmp_path, data, undisturbed, monkeypatch):
    """Interrupted in training, between two scores, and when a figure of an analysis is drawn.

    The interrupted one stands in another folder of the same name.
    """
    whole, text = undisturbed
    monkeypatch.chdir(tmp_path)
    out = Path("out")
    work = Reproduction(scale=TOY, out=out, data=data)

    def has(pattern):
        return lambda: any(out.glob(pattern))

    for module, name, condition in (
        (engine.time, "sleep", has("runs/*/*/checkpoints/step-*/state.json")),
        (engine, "evaluate", has("results/*.json")),
        (figures, "save", has("analyses/tp-transformer/*/*.svg")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, raising(getattr(module, name), condition))
            with pytest.raises(KeyboardInterrupt):
                said(work)
        assert not (out / "report.html").exists()
    assert len(list(out.glob("results/*.json"))) == 2
    assert said(work).splitlines()[-30:] == text.splitlines()[-30:]
    for name in ("report.html", "reproduction.json", "scale.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    for run in work.runs():
        runs.assert_same_run(run.folder, whole / run.folder.relative_to(out))


def test_its_files_and_what_it_says(undisturbed, data, monkeypatch):
    out, text = undisturbed
    monkeypatch.chdir(out.parent)
    assert {path.name for path in out.iterdir() if path.name[0] != "."} == {
        *("scale.json", "runs", "results", "analyses", "reproduction.json", "report.html"),
        "times.json",
    }
    written = json.loads((out / "reproduction.json").read_text())
    assert list(written["rows"]) == ["transformer", "tp-transformer"]
    assert len(written["rows"]["transformer"]["interpolate"]["accuracies"]) == 1
    (note,) = written["notes"]  # a model of eight steps answers nothing
    assert note.startswith("tp-transformer, roles: not possible: the model answers none")
    assert note in " ".join(text.split())
    assert "No band exists for data that were given" in text
    times = json.loads((out / "times.json").read_text())
    for clock in ("seconds", "processor_seconds"):
        assert times[clock].keys() == {"questions", "training", "scores", "analyses", "report"}
    assert times["processor_seconds"]["analyses"] > 0.0
    # Once more: nothing is trained, and nothing changes.
    before = {path: path.stat().st_mtime for path in (out / "runs").rglob("*")}
    monkeypatch.setattr(engine.subprocess, "Popen", None)
    again = said(Reproduction(scale=TOY, out=Path("out"), data=data))
    assert again.splitlines()[-30:] == text.splitlines()[-30:]
    assert {path: path.stat().st_mtime for path in (out / "runs").rglob("*")} == before


def test_another_scale_settings_or_data_are_an_error(tmp_path, data, undisturbed):
    (tmp_path / "out").mkdir()
    shutil.copy(undisturbed[0] / "scale.json", tmp_path / "out")
    work = Reproduction(scale=TOY, out=tmp_path / "out", data=data)
    before = (tmp_path / "out" / "scale.json").read_bytes()
    for other, message in (
        (replace(work, scale=replace(TOY, name="hour")), 'name is "toy", not "hour"'),
        (replace(work, scale=replace(TOY, seeds=(0, 1))), r"seeds is \[3\], not \[0, 1\]"),
        (
            replace(work, data=runs.make_store(tmp_path / "other", interpolate=(5,))),
            "data_sha256.interpolate is",
        ),
    ):
        with pytest.raises(FolderError, match=message):
            reproduce(other)
    assert os.listdir(tmp_path / "out") == ["scale.json"]
    assert (tmp_path / "out" / "scale.json").read_bytes() == before


def test_what_is_not_a_reproduction_is_refused(tmp_path, data, undisturbed):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for out, message in (("mine", "has other files"), ("mine/thesis.tex", "is a file")):
        with pytest.raises(FolderError, match=message):
            reproduce(Reproduction(scale=TOY, out=tmp_path / out, data=data))
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "times.json").write_text("[")
    shutil.copy(undisturbed[0] / "scale.json", begun)
    with pytest.raises(FolderError, match=r"times\.json is damaged"):
        reproduce(Reproduction(scale=TOY, out=begun, data=data))
    with pytest.raises(SettingsError, match=r"needs the published questions.*--data DIR"):
        reproduce(Reproduction(scale=TOY, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_report_compares_the_tp_transformer_with_the_others(undisturbed):
    page = (undisturbed[0] / "report.html").read_text("utf-8")
    assert "results/tp-transformer-seed-3.json results/transformer-seed-3.json" in page
