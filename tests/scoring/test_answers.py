"""Wrong answers are decoded in full, also by an evaluation that goes on where one stopped."""

import json

import numpy as np
import torch

import tp_transformer as tpt
from corpora import make_store
from tp_transformer.data.store import open_store
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import Work


def test_predictions_are_decoded_in_full(store, trained, tmp_path):
    """Also where every right answer is shorter, and whether or not the model ends its answer."""
    endless = tpt.load(trained)
    with torch.no_grad():
        endless.embedding.symbols.weight[endless.vocabulary.eos] = 0
    endless.save(tmp_path / "endless")
    questions, _ = open_store(store)["extrapolate"].rows(np.arange(60))
    key = ("extrapolate", "arithmetic__add_or_sub_big", None)
    short = make_store(tmp_path / "short", {key: [(question, "x") for question in questions]})
    for folder, lengths in ((trained, range(2, 30)), (tmp_path / "endless", [200])):
        file = tmp_path / "answers.jsonl"
        results = tmp_path / f"{folder.name}.json"
        found = evaluate(folder, short, results, work=Work(predictions=file))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        predicted = [line["predicted"] for line in lines]
        assert predicted == tpt.load(folder).solve(questions, max_length=200)
        assert max(map(len, predicted)) in lengths
        assert found.splits["extrapolate"].average[0] == 0
