"""The demos: of the bundled models, and of two tiny models that are trained."""

import io
import json
import shlex
import shutil

import pytest
from rich.console import Console

import runs
import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.errors import FolderError
from tp_transformer.model import bundled
from tp_transformer.scoring.options import QuestionChoice
from tp_transformer.scoring.results import Results
from tp_transformer.study import engine
from tp_transformer.study.demo import (
    MODULES,
    QUESTIONS,
    REPORT,
    SEED,
    SHARES,
    TRAINED,
    demo,
    live_demo,
)

NAMES = ("first", "twin")
WIDTH = 100


def shown(folder):
    file = io.StringIO()
    demo(folder, Console(file=file, width=WIDTH), test_count=2, diagnose=1)
    return file.getvalue()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A folder of bundled models, untrained."""
    folder = tmp_path_factory.mktemp("shipped") / "bundled"
    for name, preset in zip(NAMES, ("tp-transformer-tiny", "transformer-tiny"), strict=True):
        tpt.build(preset, n_layers=1).save(folder / name)
    (folder / bundled.INDEX).write_text(json.dumps(NAMES), encoding="utf-8")
    return folder


@pytest.fixture
def bundle(shipped, monkeypatch):
    monkeypatch.setattr(bundled, "FOLDER", shipped)


@pytest.fixture(scope="module")
def shown_once(shipped, tmp_path_factory):
    """A demo: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "FOLDER", shipped)
        return folder, shown(folder)


def test_the_files_of_a_demo_and_what_it_says(shown_once):
    folder, text = shown_once
    files = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert files == {QUESTIONS, REPORT, *(f"{name}.json" for name in NAMES)}
    assert all(name in text for name in files)
    assert all(name in (folder / REPORT).read_text("utf-8") for name in NAMES)
    modules = tpt.data.open(folder / QUESTIONS)["interpolate"].modules
    areas = {module.partition("__")[0] for module in modules}
    assert len(areas) == 8
    answers, scores = text.split("4. Their scores")
    assert all(any(line.startswith(area) for line in answers.splitlines()) for area in areas)
    assert "✗" in answers
    for name in NAMES:
        split = Results.read(folder / f"{name}.json").splits["interpolate"]
        assert split.n == 2 * 56
        assert f"{split.average[0]:.2%}" in scores
        above = [sum(m.accuracy > share for m in split.modules.values()) for share in SHARES]
        row = next(line for line in scores.splitlines() if line.startswith(f"{name} "))
        assert row.split()[-2:] == [str(count) for count in above]
    assert all(words in scores for words in ("first minus twin", "one seed"))


def test_a_model_of_some_modules_is_scored_on_these(shown_once, shipped, tmp_path, monkeypatch):
    folder, _ = shown_once
    modules = ("arithmetic__mixed", "arithmetic__mul")
    shutil.copytree(shipped, tmp_path / "bundled")
    shutil.copytree(folder / QUESTIONS, tmp_path / "demo" / QUESTIONS)
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "bundled")
    card = tmp_path / "bundled" / NAMES[0] / bundled.RESULTS
    choice = QuestionChoice(modules=modules, splits=("interpolate",))
    tpt.evaluate(NAMES[0], folder / QUESTIONS, card, choice=choice)
    answers, scores = shown(tmp_path / "demo").split("4. Their scores")
    found = [Results.read(tmp_path / "demo" / f"{name}.json") for name in NAMES]
    assert [len(one.splits["interpolate"].modules) for one in found] == [2, 56]
    assert any(line.startswith("mul ") for line in answers.splitlines())
    assert "minus" not in scores  # models of different modules are not compared


def test_marks_agree_with_the_answers(shown_once, bundle):
    folder, text = shown_once
    split = tpt.data.open(folder / QUESTIONS)["interpolate"]
    model = tpt.load("first")
    firsts = [next(iter(split.examples(module))) for module in split.modules]
    right = [example for example in firsts if model.solve([example.question]) == [example.answer]]
    n_areas = len({example.module.partition("__")[0] for example in right})
    answers = text.split("3. Their answers")[1].split("4. Their scores")[0]
    assert answers.count("✓") >= n_areas  # the twin may have more


def test_lines_fit_the_terminal(shown_once):
    _, text = shown_once
    wide = ("In ", "Next:", *NAMES)  # with paths
    assert all(len(line) <= WIDTH for line in text.splitlines() if not line.startswith(wide))


def test_again_from_the_same_folder(shown_once, bundle):
    folder, text = shown_once
    before = (folder / REPORT).read_bytes()
    assert shown(folder).split("3. Their answers")[1] == text.split("3. Their answers")[1]
    assert (folder / REPORT).read_bytes() == before


@pytest.mark.parametrize("show", [demo, live_demo])
def test_files_of_the_user_are_not_overwritten(show, bundle, tmp_path):
    file = tmp_path / f"{NAMES[0]}.json"
    file.write_text("mine", encoding="utf-8")
    for folder, message in ((file, "is a file"), (tmp_path, "has other files")):
        with pytest.raises(FolderError, match=message):
            show(folder)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.read_text("utf-8") == "mine"


@pytest.mark.skipif(not bundled.names(), reason="no model is bundled")
@pytest.mark.parametrize("name", bundled.names())
def test_the_seed_is_not_that_of_training(name):
    trained = json.loads((bundled.FOLDER / name / "training.json").read_text("utf-8"))
    seeds = {stage["data"]["source"]["seed"] for stage in trained["stages"]}
    assert seeds
    assert SEED not in seeds


# Two tiny models, trained live.

FILES = {
    "questions",
    *(f"{name}{end}" for name in TRAINED for end in ("", ".json", "-answers.jsonl")),
}
SHORT = {"count": 30, "test_count": 8, "steps": 20}


def trained(folder, size, width=80):
    file = io.StringIO()
    live_demo(folder, Console(file=file, width=width), **size)
    return file.getvalue()


def test_a_short_demo_and_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.subprocess, "Popen", runs.Forked)
    monkeypatch.setattr(engine, "_SECONDS_BETWEEN_LOOKS", 0.02)
    folder = tmp_path / "demo"
    text = trained(folder, SHORT)
    assert "with one seed" in text
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == FILES
    for name in FILES | MODULES.keys():
        assert name in text
    assert "✗" in text
    # Lines with paths, and those of the progress, are for programs that wrap them.
    wide = ("$ tpt", "Next:", "In ", "tp-transformer: step", "transformer: step")
    said = [line for line in text.splitlines() if not line.startswith(wide)]
    assert max(map(len, said)) <= 80
    lines = (folder / "transformer-answers.jsonl").read_text("utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    assert len(answers) == 5 * 8
    model = tpt.load(folder / "transformer")
    solved = model.solve(
        [line["question"] for line in answers], max_length=model.config.n_positions
    )
    assert solved == [line["predicted"] for line in answers]
    before = (folder / "transformer" / "metrics.jsonl").read_bytes()
    again = trained(folder, SHORT)
    assert (folder / "transformer" / "metrics.jsonl").read_bytes() == before
    assert again.splitlines()[-3:] == text.splitlines()[-3:]
    solve, analysis = (
        shlex.split(line)[2:] for line in text.splitlines() if line.startswith("Next:")
    )
    cli.main(solve)
    # By default the questions are those that the model answers correctly, and all heads are drawn.
    cli.main([*analysis, "--answered=false", "--head=0"])
    assert (folder / "analysis" / "attention-encoder.json").exists()


@pytest.mark.slow
def test_the_demo_learns_a_module(tmp_path):
    trained(tmp_path / "demo", {})
    results = [Results.read(tmp_path / "demo" / f"{name}.json") for name in TRAINED]
    splits = [each.splits["interpolate"] for each in results]
    assert max(score.accuracy for split in splits for score in split.modules.values()) > 0.8
