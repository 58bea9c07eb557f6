"""Analyses of a model whose tokens are words."""

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import Sample

QUESTIONS = ("jump twice and walk left", "walk", "look around right", "jump and look")
ANSWERS = ("JUMP JUMP WALK", "WALK", "LOOK LOOK LOOK LOOK", "JUMP LOOK")
SAMPLE = Sample(questions=QUESTIONS, answers=ANSWERS, origin="four commands")
REFUSED = ("roles", "surgery", "binding", "interchange")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    vocabulary = Vocabulary.of((*QUESTIONS, *ANSWERS), "words")
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 1}
    return tpt.build("tp-transformer-tiny", vocabulary=vocabulary, **sizes).eval()


def words(text):
    return len(text.split(" "))


def test_activations_are_those_of_words(model):
    names = [name for name in model.trace_names if not name.endswith("output")]
    found = record(model, SAMPLE, names)
    roles = found["encoder.0.self_attention.role"]
    assert [piece.shape for piece in roles] == [(4, words(text) + 2, 8) for text in QUESTIONS]
    weights = found["decoder.0.cross_attention.weights"]
    expected = [(4, words(a) + 1, words(q) + 2) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]
    assert [piece.shape for piece in weights] == expected
    for index in range(len(SAMPLE)):
        alone = record(model, SAMPLE.some([index]), names)
        for name in names:
            np.testing.assert_allclose(found[name][index], alone[name][0], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("where", ["encoder", "decoder", "cross"])
def test_attention_maps_name_words(model, where, tmp_path):
    found = tpt.interpret.attention(model, SAMPLE, where=where, shown=4, head=0)
    shown = next(one for one in found.maps if one.question == QUESTIONS[2])
    source, target = ("#", "look", "around", "right", "%"), ("#", "LOOK", "LOOK", "LOOK", "LOOK")
    assert shown.queries == (source if where == "encoder" else target)
    assert shown.keys == (target if where == "decoder" else source)
    assert shown.weights.shape == (1, 5, 5)
    assert not found.rankings
    assert ("the tokens of this model are words" in found.summary()[0]) == (where == "encoder")
    found.save(tmp_path)  # looked at by conftest
    rows = (tmp_path / f"attention-{where}-layer0-head0.svg").read_text("utf-8")
    assert "around" in rows or where == "decoder"
    assert "Numerators" not in rows


def test_information_and_tensor_products_are_of_words(model):
    n_positions = sum(words(text) + 2 for text in QUESTIONS)
    found = tpt.interpret.information(model, SAMPLE)
    assert found.states[0].held_out.n_positions == n_positions
    found = tpt.interpret.tensor_product(model, SAMPLE, layer=0)
    assert found.n_fitted + found.n_scored == n_positions
    found = tpt.interpret.tensor_product(model, SAMPLE, layer=0, where="cross")
    assert found.n_fitted + found.n_scored == sum(words(text) + 1 for text in ANSWERS)


@pytest.mark.parametrize("name", REFUSED)
def test_an_analysis_of_characters_is_refused(model, name):
    with pytest.raises(UserError, match=r"characters of expressions, but the tokens of .* words"):
        ANALYSES[name](model, SAMPLE)
