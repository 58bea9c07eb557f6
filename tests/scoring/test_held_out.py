"""The training questions that a run held out are not asked, and who does not know them says so."""

import io
import json
import shutil

import pytest
from rich.console import Console

import tp_transformer as tpt
from corpora import make_store
from runs import config
from tp_transformer.data.store import open_store
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.report.terminal import render_results
from tp_transformer.scoring.compare import caveats
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.results import Results


@pytest.fixture(scope="session")
def run(store, tmp_path_factory):
    """A short run that held out questions: 30 of each of the three parts of the training split."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = config(training__steps=6, validation__every=3, validation__count=90)
    tpt.train(settings, store, folder, quiet=True)
    return folder


def asked_for_training(folder, data, out, train_count):
    """The results, and the training rows that were asked."""
    choice = QuestionChoice(train_count=train_count)
    work = EvaluationOptions(predictions=out / "answers.jsonl", overwrite=True)
    found = evaluate(folder, data, out / "r.json", choice, work)
    lines = map(json.loads, (out / "answers.jsonl").read_text().splitlines())
    return found, {line["row"] for line in lines if line["split"] == "train"}


@pytest.mark.parametrize("model", [".", "best", "last", "checkpoints/step-00000006"])
def test_training_questions_held_out_by_the_run_are_not_asked(store, run, tmp_path, model):
    held_out = {row for one in open_store(store)["train"].segments for row in one.rows[-30:]}
    everything = set(range(3000))
    elsewhere = tmp_path / "the same store elsewhere"
    shutil.copytree(store, elsewhere)
    for data in (store, elsewhere):
        found, rows = asked_for_training(run / model, data, tmp_path, 10_000)
        assert rows == everything - held_out
        assert found.held_out == Results.read(tmp_path / "r.json").held_out == 90
    found, rows = asked_for_training(run / model, store, tmp_path, 500)
    assert len(rows) == 2 * 500
    assert not rows & held_out
    assert not any("held out" in line for line in caveats([found]))


def test_what_a_model_without_a_run_on_the_data_was_validated_with_is_not_known(
    store, run, tmp_path
):
    shutil.copytree(run / "best", tmp_path / "model")
    rows = {("train", "numbers__gcd", "easy"): [("What is 1 + 1?", "2")] * 40}
    other = make_store(tmp_path / "other", rows)
    for folder, data in ((tmp_path / "model", store), (run, other)):
        found, rows = asked_for_training(folder, data, tmp_path, 10_000)
        assert rows == set(range(len(open_store(data)["train"])))
        assert found.held_out is None
        assert any("may include questions held out" in line for line in caveats([found]))
        console = Console(width=200, file=io.StringIO())
        render_results(found, console)
        assert "Train may include questions held out" in console.file.getvalue()


def test_a_run_that_does_not_tell_what_it_held_out_is_refused(store, run, tmp_path):
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    origin = tmp_path / "run" / "run.json"
    facts = json.loads(origin.read_text())
    message = r"cannot read from .* which questions were held out"
    file.write_text(text.replace("count: 90", "count: 9"))
    with pytest.raises(SettingsError, match=f"{message}: it was changed"):
        evaluate(
            tmp_path / "run", store, tmp_path / "r.json", options=EvaluationOptions(diagnose=0)
        )
    # Runs of earlier versions have no hash of their settings.
    origin.write_text(json.dumps({k: v for k, v in facts.items() if k != "config_sha256"}))
    for damaged in (text[: text.index("validation:")], text.replace("count: 90", "count: many")):
        file.write_text(damaged)
        with pytest.raises(SettingsError, match=f"{message}$"):
            evaluate(
                tmp_path / "run", store, tmp_path / "r.json", options=EvaluationOptions(diagnose=0)
            )
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(FolderError, match=r"run\.json is damaged"):
        evaluate(
            tmp_path / "run", store, tmp_path / "r.json", options=EvaluationOptions(diagnose=0)
        )
