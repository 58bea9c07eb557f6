"""Heads that follow a relation by construction are ranked first; others follow nothing."""

import numpy as np
import pytest

from planted import sample
from tp_transformer.interpret import following
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.structure import RELATIONS

SAMPLE = sample(32)
EXPRESSIONS = [parse(question) for question in SAMPLE.questions]
SECOND = "second argument to its operator"


def random_weights(seed=0, questions=SAMPLE.questions, n_layers=2, n_heads=3):
    rng = np.random.default_rng(seed)
    lengths = [len(symbols(question)) for question in questions]
    return [rng.dirichlet(np.ones(n), size=(n_layers, n_heads, n)) for n in lengths]


def attend(weights, pairs, share=0.9):
    """Let queries attend to one of the keys that they are related to."""
    for query, keys in pairs:
        weights[query] *= (1 - share) / weights[query].sum()
        weights[query, min(keys)] += share


def planted_weights(relation, share=0.9, expressions=EXPRESSIONS):
    weights = random_weights(questions=[expression.question for expression in expressions])
    for own, expression in zip(weights, expressions, strict=True):
        attend(own[1, 2], RELATIONS[relation](expression), share)
    return weights


def rank(relation, weights, expressions=EXPRESSIONS, initial=0.0):
    attention = following.Attention.of(weights, expressions)
    return following.rank(relation, RELATIONS[relation], attention, initial=initial, seed=0)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_head_that_follows_a_relation_is_ranked_first(relation):
    found = rank(relation, planted_weights(relation))
    best, *others = found.heads
    assert (best.layer, best.head) == (1, 2)
    assert best.mass > 0.85
    assert best.hits > 0.95
    assert found.clear == (best,)
    assert found.best is best
    assert best.margin > 0.1 > max(other.margin for other in others)
    assert len(found.heads) == 6


def test_an_operator_followed_at_any_distance_is_not_a_matter_of_distance():
    best = rank(SECOND, planted_weights(SECOND)).best
    assert best.by_distance < 0.45
    assert best.margin > 0.45


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
    assert looking.margin < 1e-9
    assert not looking.is_clear


def before(question, at):
    return range(max(at - 3, 0), at)


def after(question, at):
    return range(at + 1, min(at + 4, len(symbols(question))))


def near(question, at):
    return range(max(at - 2, 0), min(at + 3, len(symbols(question))))


def before_digits(question, at):
    return [at - 1] if symbols(question)[at].isdigit() else range(len(symbols(question)))


@pytest.mark.parametrize("looked_at", [before, after, near, before_digits])
def test_a_head_that_goes_by_distance_follows_nothing(looked_at):
    weights = []
    for question in SAMPLE.questions:
        n = len(symbols(question))
        own = np.zeros((1, 1, n, n))
        for at in range(n):
            keys = list(looked_at(question, at)) or [at]
            own[0, 0, at, keys] = 1 / len(keys)
        weights.append(own)
    found = {relation: rank(relation, weights).heads[0] for relation in RELATIONS}
    assert max(one.mass for one in found.values()) > 0.25
    for relation, one in found.items():
        assert one.margin < 1e-4, relation
        assert not one.is_clear, relation


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
    assert alone.exchanged == alone.even == pytest.approx(1 / 5)


def test_distance_by_hand():
    # Two questions, whose digits attend to the position before, or to that after.
    questions = ["7-8", "7-8"]
    weights = [np.full((1, 1, 5, 5), 0.2) for _ in questions]
    for own, step in zip(weights, (-1, 1), strict=True):
        for at in (1, 3):
            own[0, 0, at] = 0
            own[0, 0, at, at + step] = 1
    found = rank(SECOND, weights, [parse(question) for question in questions]).heads[0]
    assert found.mass == 0.5
    assert found.by_distance == pytest.approx(0.5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_numbers_add_up(relation):
    for one in rank(relation, planted_weights(relation)).heads:
        assert one.baseline == max(one.even, one.exchanged, one.by_distance)
        assert one.margin == one.mass - one.baseline
        assert one.interval[0] <= one.margin <= one.interval[1]


def test_a_margin_that_initial_weights_have_is_not_clear():
    weights = planted_weights(SECOND, share=0.1)
    best = rank(SECOND, weights).best
    assert best.is_clear
    low, high = best.interval
    assert rank(SECOND, weights, initial=low - 1e-6).clear
    found = rank(SECOND, weights, initial=low + 1e-6)
    assert found.clear == ()
    assert found.best.interval == (low, high)


def test_the_greatest_margin_is_that_of_the_best_head():
    weights = planted_weights(SECOND)
    attention = following.Attention.of(weights, EXPRESSIONS)
    greatest = following.greatest_margin(RELATIONS[SECOND], attention)
    assert greatest == pytest.approx(rank(SECOND, weights).heads[0].margin)


def test_few_questions_say_nothing():
    few = following.FEWEST - 1
    found = rank(SECOND, planted_weights(SECOND)[:few], EXPRESSIONS[:few])
    assert found.clear == ()
    assert {(one.interval, one.is_clear) for one in found.heads} == {(None, None)}
    enough = rank(SECOND, planted_weights(SECOND)[: few + 1], EXPRESSIONS[: few + 1])
    assert len(enough.clear) == 1


def test_what_nobody_has_cannot_be_ranked():
    relation = "opening to closing parenthesis"
    weights = [np.full((1, 1, 5, 5), 0.2)] * 2
    found = rank(relation, weights, [parse("1/2"), None])
    assert (found.n_positions, found.n_questions, found.heads) == (0, 0, ())
    attention = following.Attention.of(weights, [None, None])
    assert following.greatest_margin(RELATIONS[relation], attention) == 0
