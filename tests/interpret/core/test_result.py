"""What every result has: a caption, JSON, files that are written completely or not at all."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import figures
from tp_transformer.interpret.core.result import Context, Result, plain
from tp_transformer.interpret.core.sample import Sample

SAMPLE = Sample(questions=("1/2?", "a"), answers=("1", "b"), origin="two questions")


@dataclass(frozen=True, kw_only=True)
class Found(Result):
    score: object
    fails: bool = False

    name = "found"

    def summary(self):
        return [f"the score is {self.score}"]

    def values(self):
        return {"score": self.score}

    def plot(self):
        if self.fails:
            raise ValueError("cannot be drawn")
        with figures.figure(figures.COLUMN, 2.0) as (drawn, axes):
            axes.set_title(self.context.caption, fontsize=figures.SMALLEST)
            return {"found-plot": drawn}


@pytest.fixture(scope="module")
def context():
    torch.manual_seed(0)
    return Context.of(tpt.build("tp-transformer-tiny", d_model=32, n_heads=4), SAMPLE, 5)


def test_the_context_is_in_the_caption_and_in_the_json(context):
    assert context.caption == "a model without a folder; two questions; analysis seed 5"
    model = {**context.model, "name": "run", "step": 1200}
    assert replace(context, model=model).caption == (
        "run after 1,200 steps; two questions; analysis seed 5"
    )
    values = Found(context=context, score=np.float32(0.5)).to_json()
    assert values["analysis"] == "found"
    assert (values["seed"], values["score"], values["summary"]) == (5, 0.5, ["the score is 0.5"])
    assert values["environment"]["device"] == "cpu"
    assert values["sample"]["questions"] == ["1/2?", "a"]
    assert len(values["model"]["sha256"]) == 64


def test_the_time_of_an_analysis_is_no_part_of_its_equality(context):
    later = replace(context, environment={**context.environment, "when": "later"})
    assert Found(context=later, score=1) == Found(context=context, score=1)
    assert Found(context=replace(context, seed=6), score=1) != Found(context=context, score=1)


def test_arrays_become_plain_values():
    found = {"scores": np.arange(3, dtype=np.float32), "none": None, "nested": {1: (np.int64(2),)}}
    assert plain(found) == {"scores": [0.0, 1.0, 2.0], "none": None, "nested": {"1": [2]}}


def test_files_are_written_after_everything_is_computed(context, tmp_path):
    files = Found(context=context, score=1.0).save(tmp_path)
    assert [file.name for file in files] == [
        "found.json",
        *(f"found-plot.{kind}" for kind in figures.FORMATS),
    ]
    text = files[0].read_text("utf-8")
    assert '"score": 1.0' in text
    with pytest.raises(ValueError, match="JSON"):
        Found(context=context, score=float("nan")).save(tmp_path)
    assert files[0].read_text("utf-8") == text
    with pytest.raises(ValueError, match="cannot be drawn"):
        Found(context=context, score=1.0, fails=True).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
