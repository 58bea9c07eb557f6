"""Evaluation of models that are objects, on stores that are objects, without files."""

import copy

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.store import open_store
from tp_transformer.errors import FolderError
from tp_transformer.model import bundled

CHOICE = tpt.QuestionChoice(splits=("interpolate",), modules=("numbers__place_value",))
WORK = tpt.EvaluationOptions(diagnose=5, decode=10)


def verdicts(results):
    (score,) = results.splits["interpolate"].modules.values()
    return score.verdicts.tolist()


@pytest.fixture(scope="module")
def model(trained):
    return tpt.load(trained)


@pytest.fixture(scope="module")
def results(model, store):
    return tpt.evaluate(model, open_store(store), choice=CHOICE, options=WORK, name="mine")


def test_an_object_scores_as_its_folder_does(store, trained, results, tmp_path):
    of_folder = tpt.evaluate(trained, store, tmp_path / "r.json", CHOICE, WORK)
    assert results.splits["interpolate"].to_json() == of_folder.splits["interpolate"].to_json()
    assert results.model["sha256"] == of_folder.model["sha256"]
    assert results.name == "mine"
    assert of_folder.name != "mine"
    assert results.decoding["n"] == 10
    assert 0 < results.splits["interpolate"].average[0] < 1


def test_nothing_is_written_without_a_file(store, model, tmp_path, monkeypatch):
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    tpt.evaluate(model, store, choice=CHOICE, options=WORK)
    assert not list(folder.iterdir())
    assert not [file for file in store.parent.iterdir() if file != store]


def test_the_model_is_not_changed(store, model):
    own = copy.deepcopy(model).to(torch.float64).train()
    tpt.evaluate(own, store, choice=CHOICE, options=WORK)
    assert own.training
    assert next(own.parameters()).dtype == torch.float64


def test_inside_a_trace_the_edited_model_is_scored(store, model, results):
    zeros = {"encoder.0.self_attention.role": torch.zeros_like}
    with model.trace(edit=zeros):
        edited = tpt.evaluate(model, store, choice=CHOICE, options=WORK)
    assert verdicts(edited) != verdicts(results)
    unchanged = tpt.evaluate(model, store, choice=CHOICE, options=WORK)
    assert verdicts(unchanged) == verdicts(results)


def test_no_model_is_refused_if_none_is_bundled(store, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    with pytest.raises(FolderError, match="no model is bundled"):
        tpt.evaluate(None, store)
