"""Attention: heads that follow a relation by construction are ranked first, others are not."""

import json

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from planted import sample
from tp_transformer import UserError
from tp_transformer.interpret import attention_maps, following
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import Sample, record, symbols
from tp_transformer.interpret.structure import RELATIONS

SAMPLE = sample(32)  # as many as pass a model at once
EXPRESSIONS = [parse(question) for question in SAMPLE.questions]
SECOND = "second argument to its operator"


def noise(rng, question, n_layers=2, n_heads=3):
    n = len(symbols(question))
    return rng.dirichlet(np.ones(n), size=(n_layers, n_heads, n))


def random_weights(seed=0):
    rng = np.random.default_rng(seed)
    return [noise(rng, question) for question in SAMPLE.questions]


def attend(weights, pairs, share=0.9):
    """Let queries attend to one of the keys that they are related to."""
    for query, keys in pairs:
        weights[query] *= (1 - share) / weights[query].sum()
        weights[query, min(keys)] += share


def rank(relation, weights, expressions=EXPRESSIONS):
    return following.rank(relation, RELATIONS[relation], weights, expressions, seed=0)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_head_that_follows_a_relation_is_ranked_first(relation):
    weights = random_weights()
    for own, expression in zip(weights, EXPRESSIONS, strict=True):
        attend(own[1, 2], RELATIONS[relation](expression))
    found = rank(relation, weights)
    best, *others = found.heads
    assert (best.layer, best.head) == (1, 2)
    assert best.mass > 0.85
    assert best.hits > 0.95
    assert best.is_clear
    assert best.margin > 0.3 > max(other.margin for other in others)
    assert len(found.heads) == 6


def test_random_heads_follow_nothing():
    clear = [
        head.is_clear
        for seed in range(4)
        for relation in RELATIONS
        for head in rank(relation, random_weights(seed)).heads
    ]
    # Of 48 rankings, a twentieth may have a head that seems clear on either side.
    assert sum(clear) <= 4


def test_a_head_that_looks_at_any_operator_does_not_follow_the_relation():
    weights = random_weights()
    for own, question in zip(weights, SAMPLE.questions, strict=True):
        operators = [at for at, character in enumerate(symbols(question)) if character in "/*-+"]
        own[0, 0] = 0
        own[0, 0][:, operators] = 1 / len(operators)
    found = rank(SECOND, weights)
    looking = next(one for one in found.heads if (one.layer, one.head) == (0, 0))
    assert looking.mass > 4 * looking.even
    assert looking.margin == pytest.approx(0, abs=1e-9)
    assert not looking.is_clear


def test_the_baselines_by_hand():
    question = "1/2-3"
    n = len(symbols(question))
    weights = np.zeros((1, 1, n, n))
    weights[..., 2] = 0.7  # on the division
    weights[..., 4] = 0.3  # on the subtraction
    found = rank(SECOND, [weights], [parse(question)]).heads[0]
    # 2 is the second argument of the division, 3 of the subtraction.
    assert found.mass == pytest.approx((0.7 + 0.3) / 2)
    assert found.exchanged == pytest.approx((0.3 + 0.7) / 2)
    assert found.even == pytest.approx(1 / n)
    assert found.hits == 0.5
    alone = rank(SECOND, [weights[..., :5, :5]], [parse("1/2")]).heads[0]
    assert alone.exchanged is None
    assert alone.margin == pytest.approx(0.7 - 1 / 5)


def test_what_nobody_has_cannot_be_ranked():
    weights = [np.full((1, 1, 5, 5), 0.2)] * 2
    found = rank("opening to closing parenthesis", weights, [parse("1/2"), None])
    assert (found.n_positions, found.n_questions, found.heads) == (0, 0, ())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", d_model=32, n_heads=4)


def test_the_search_finds_a_planted_head_in_a_model(model):
    def plant(weights):
        planted = weights.clone()
        for row, expression in enumerate(EXPRESSIONS):
            own = planted[row, 3].numpy()
            attend(own, RELATIONS[SECOND](expression))
        return planted

    with model.trace(edit={"encoder.1.self_attention.weights": plant}):
        (found,) = attention_maps.search(model, SAMPLE, relation=SECOND)
    assert (found.heads[0].layer, found.heads[0].head) == (1, 3)
    assert found.heads[0].mass > 0.9
    assert not any(head.margin > 0.1 for head in found.heads[1:])


@pytest.mark.parametrize("where", attention_maps.ATTENTIONS)
def test_maps_have_the_symbols_of_their_rows_and_columns(model, where):
    found = attention_maps.analyse(model, SAMPLE, where=where, head=1)
    assert (found.layer, found.heads, len(found.maps)) == (1, (1,), attention_maps.SHOWN)
    for one in found.maps:
        assert one.weights.shape == (1, len(one.queries), len(one.keys))
        np.testing.assert_allclose(one.weights.sum(axis=-1), 1, atol=1e-5)
        assert one.question in SAMPLE.questions
    name = attention_maps.ATTENTIONS[where].format(1)
    recorded = record(model, SAMPLE, [name])[name]
    first = recorded[SAMPLE.questions.index(found.maps[0].question)]
    np.testing.assert_allclose(found.maps[0].weights[0], first[1], atol=1e-5)
    source, target = symbols(found.maps[0].question), "#7"
    expected = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    assert (found.maps[0].queries, found.maps[0].keys) == expected[where]
    assert bool(found.rankings) == (where == "encoder")


def test_numbers_and_figures_are_written(model, tmp_path):
    few = Sample(questions=("1/2", "Is 7 prime?"), answers=("1/2", "True"), origin="two questions")
    context = Context.of(model, few, folder=tmp_path / "tiny")
    for where in attention_maps.ATTENTIONS:
        found = attention_maps.analyse(model, few, where=where, head=0, shown=1)
        files = attention_maps.save(found, context, tmp_path)
        assert len(files) == (10 if where == "encoder" else 7)
        assert all(file.stat().st_size > 1000 for file in files)
    values = json.loads((tmp_path / "attention-encoder.json").read_text("utf-8"))
    assert [one["relation"] for one in values["rankings"]] == list(RELATIONS)


def test_what_cannot_be_done_is_said(model):
    with pytest.raises(UserError, match="no attention 'encodr'"):
        attention_maps.analyse(model, SAMPLE, where="encodr")
    with pytest.raises(UserError, match="no relation 'second'"):
        attention_maps.search(model, SAMPLE, relation="second")
    with pytest.raises(UserError, match="LSTM"):
        attention_maps.analyse(tpt.build("lstm-saxton", d_hidden=8), SAMPLE)
