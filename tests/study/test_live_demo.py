import io
import json
import shlex

import pytest
from rich.console import Console

import runs
import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.scoring.results import Results
from tp_transformer.study import watch
from tp_transformer.study.live_demo import MODULES, live_demo

FILES = {
    "questions",
    "tp-transformer",
    "tp-transformer.json",
    "tp-transformer-answers.jsonl",
    "transformer",
    "transformer.json",
    "transformer-answers.jsonl",
}

SHORT = {"count": 30, "test_count": 8, "steps": 20}


def shown(folder, size, width=80):
    file = io.StringIO()
    live_demo(folder, Console(file=file, width=width), **size)
    return file.getvalue()


def test_a_short_demo_and_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(watch.subprocess, "Popen", runs.Forked)
    monkeypatch.setattr(watch, "_SECONDS_BETWEEN_LOOKS", 0.02)
    folder = tmp_path / "demo"
    text = shown(folder, SHORT)
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
    again = shown(folder, SHORT)
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
    shown(tmp_path / "demo", {})
    accuracies = [
        score.accuracy
        for name in ("tp-transformer", "transformer")
        for score in Results.read(tmp_path / "demo" / f"{name}.json")
        .splits["interpolate"]
        .modules.values()
    ]
    assert max(accuracies) > 0.8
