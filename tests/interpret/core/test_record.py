from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.interpret.analyses import AnalysisOptions, checked_model, layer_index
from tp_transformer.interpret.core.record import record, untrained
from tp_transformer.interpret.core.sample import Sample, draw, token_characters

QUESTIONS = ("What is 3 + 4?", "1/2?", "a")
ANSWERS = ("7", "-13/24", "0.5")
MODULE = "arithmetic__add_or_sub"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", d_model=32, n_heads=4)


@pytest.fixture(scope="module")
def sample():
    return Sample(questions=QUESTIONS, answers=ANSWERS, origin="three questions")


@pytest.mark.parametrize(
    ("tokenisation", "answer", "kept"),
    [("characters", "<sos>1<pad>2", "12"), ("words", "<pad> 1 <sos> 2", "1 2")],
)
def test_special_tokens_in_the_models_own_answers_are_left_out(tokenisation, answer, kept):
    known = Vocabulary.of(["1 2"], tokenisation)
    model = SimpleNamespace(solve=lambda asked: [answer] * len(asked), vocabulary=known)
    found = Sample.of(["1", "2"], model)
    assert found.answers == (kept, kept)
    known.encode(found.answers)  # raises for what it does not know


def test_every_point_is_what_the_question_gives_alone(model, sample):
    names = [name for name in model.trace_names if not name.endswith("output")]
    found = record(model, sample, names)
    for row, (question, answer) in enumerate(zip(QUESTIONS, ANSWERS, strict=True)):
        alone = record(model, Sample(questions=(question,), answers=(answer,), origin=""), names)
        for name in names:
            assert found[name][row].shape == alone[name][0].shape, name
            np.testing.assert_allclose(found[name][row], alone[name][0], atol=1e-5, err_msg=name)


def test_positions_are_those_of_the_tokens(model, sample):
    names = ["encoder.1.self_attention.role", "encoder.1.output", "decoder.0.cross_attention.value"]
    found = record(model, sample, names)
    n = sum(len(token_characters(question)) for question in QUESTIONS)
    assert found.flat(names[0]).shape == (n, 4, 8)
    assert found.flat(names[1]).shape == (n, 32)
    assert found.flat(names[2]).shape == (n, 4, 8)
    last = found[names[0]][2][1, 0]  # head 1 at the first position of the last question
    np.testing.assert_array_equal(found.flat(names[0])[-len(token_characters("a")), 1], last)


def test_weights_are_cut_to_queries_and_keys(model, sample):
    names = [f"decoder.0.{kind}_attention.weights" for kind in ("self", "cross")]
    found = record(model, sample, names)
    assert [piece.shape for piece in found[names[0]]] == [
        (4, len(answer) + 1, len(answer) + 1) for answer in ANSWERS
    ]
    assert [piece.shape for piece in found[names[1]]] == [
        (4, len(answer) + 1, len(question) + 2)
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    ]
    for name in names:
        for piece in found[name]:
            np.testing.assert_allclose(piece.sum(axis=-1), 1, atol=1e-5)


def test_a_drawn_sample_is_answered(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    sample = draw(model, store, module=MODULE, count=40)
    assert len(sample) == 40
    assert model.solve(sample.questions) == list(sample.answers)
    assert draw(model, store, module=MODULE, count=40) == sample
    assert draw(model, store, module=MODULE, count=40, seed=1).questions != sample.questions
    every = draw(model, store, module=MODULE, count=5000)
    right = sum(map(str.__eq__, *zip(*answered(model, store), strict=True)))
    assert 40 < len(every) == right < 700
    assert f"{right} questions" in every.origin
    assert "all of 700 that it answers" in every.origin
    unchecked = draw(model, store, module=MODULE, count=5000, answered=False)
    assert len(unchecked) == 700


def answered(model, store):
    examples = list(store["interpolate"].examples(MODULE))
    answers = model.solve([example.question for example in examples])
    return [(one.answer, answer) for one, answer in zip(examples, answers, strict=True)]


def test_what_cannot_be_drawn_is_refused(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    with pytest.raises(UserError, match="answers none of the 700 questions"):
        draw(tpt.build("tp-transformer-tiny"), store, module=MODULE, count=10)
    with pytest.raises(UserError, match="no numbers__gcd in its interpolate split"):
        draw(model, store, module="numbers__gcd")
    with pytest.raises(UserError, match="at least 1"):
        draw(model, store, module=MODULE, count=0)


def test_plain_questions_have_the_models_own_answers(model):
    found = Sample.of(["What is 3 + 4?", "1/2?"], model)
    assert found.questions == ("What is 3 + 4?", "1/2?")
    assert list(found.answers) == model.solve(found.questions)
    assert found.origin == "given questions"
    assert Sample.of(found, model) is found
    assert Sample.of("1/2?", model).questions == ("1/2?",)
    with pytest.raises(UserError, match="at least one question"):
        Sample.of([], model)


def test_layers_are_counted_from_either_end(model):
    assert [layer_index(layer, 2) for layer in (0, 1, -1, -2, None)] == [0, 1, 1, 0, 1]
    for layer in (2, -3):
        with pytest.raises(UserError, match=f"no layer {layer}"):
            layer_index(layer, 2)
        with pytest.raises(UserError, match=f"no layer {layer}"):
            checked_model(model, AnalysisOptions(layer=layer))
    assert checked_model(model, AnalysisOptions(layer=-2)) is model
    with pytest.raises(UserError, match="LSTM"):
        checked_model(tpt.build("lstm-saxton", d_hidden=8), AnalysisOptions())


def test_untrained_weights_depend_on_the_seed_and_change_no_random_state(model):
    state = torch.get_rng_state()
    weights = [
        untrained(model, seed).state_dict()["embedding.symbols.weight"] for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_roles_of_values_are_at_the_positions_of_keys(sample):
    sizes = {"d_model": 32, "n_heads": 4, "binding": "value"}
    model = tpt.build("tp-transformer-tiny", **sizes)
    names = [f"decoder.0.{kind}_attention.role" for kind in ("self", "cross")]
    found = record(model, sample, names)
    assert [piece.shape[1] for piece in found[names[0]]] == [len(text) + 1 for text in ANSWERS]
    assert [piece.shape[1] for piece in found[names[1]]] == [len(text) + 2 for text in QUESTIONS]
