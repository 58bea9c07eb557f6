"""Heads that follow a relation by construction are ranked first; others follow nothing."""

import numpy as np
import pytest
from attention_search import BLIND, blind

from planted import nested
from tp_transformer.interpret.attention import following
from tp_transformer.interpret.attention.following import text_attention
from tp_transformer.interpret.core.relations import OF_EXPRESSIONS as RELATIONS
from tp_transformer.interpret.core.relations import SKIPPED
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.scoring.expressions import parse

SAMPLE = nested(64)
EXPRESSIONS = [parse(question) for question in SAMPLE.questions]
FIRST = "first argument to its operator"
SECOND = "second argument to its operator"
TO_DIVISION = "denominator to its division"
PAST = "denominator to its division, past a numerator"
# That the next character is a digit is all there is to these: no head can follow more than that.
IN_THE_TEXT = ("digit to the next digit", "digit to the digit before")


def random_weights(seed=0, questions=SAMPLE.questions, n_layers=2, n_heads=3):
    rng = np.random.default_rng(seed)
    lengths = [len(token_characters(question)) for question in questions]
    return [rng.dirichlet(np.ones(n), size=(n_layers, n_heads, n)) for n in lengths]


def attend(weights, pairs, share=0.9):
    """Let queries attend to the keys that they are related to."""
    for query, keys in pairs:
        weights[query] *= (1 - share) / weights[query].sum()
        weights[query, list(keys)] += share / len(keys)


def planted_weights(*relations, share=0.9, expressions=EXPRESSIONS):
    """In the second layer, each head follows one of the relations; the first is random."""
    weights = random_weights(
        questions=[expression.question for expression in expressions], n_heads=len(relations)
    )
    for own, expression in zip(weights, expressions, strict=True):
        for head, relation in enumerate(relations):
            attend(own[1, head], RELATIONS[relation](expression), share)
    return weights


def blind_weights(*heads, expressions=EXPRESSIONS, seed=0):
    rng = np.random.default_rng(seed)
    texts = [token_characters(expression.question) for expression in expressions]
    return [np.stack([blind(head, text, rng) for head in heads])[None] for text in texts]


def rank_all(weights, expressions=EXPRESSIONS, relations=RELATIONS, initial=0.0):
    attention = following.ModelAttention.of(weights, expressions)
    return following.rank(relations, attention, initial=dict.fromkeys(relations, initial), seed=0)


def rank(relation, weights, expressions=EXPRESSIONS, initial=0.0):
    (found,) = rank_all(weights, expressions, {relation: RELATIONS[relation]}, initial)
    return found


@pytest.fixture(scope="module")
def planted():
    """What is found in a model of which a head follows each relation."""
    return {one.relation: one for one in rank_all(planted_weights(*RELATIONS))}


@pytest.mark.parametrize("relation", [name for name in RELATIONS if name not in IN_THE_TEXT])
def test_a_head_that_follows_a_relation_is_ranked_first(relation, planted):
    found = planted[relation]
    best = found.heads[0]
    head = list(RELATIONS).index(relation)
    if relation == PAST:  # a head that follows it everywhere follows it there
        assert {(1, head), (1, head - 1)} == {(one.layer, one.head) for one in found.heads[:2]}
    else:
        assert (best.layer, best.head) == (1, head)
    assert best.mass > 0.85
    assert best.hits > 0.95
    assert best.margin > 0.1
    assert best in found.clear
    assert found.best is best
    assert {one.layer for one in found.clear} == {1}
    assert len(found.heads) == 2 * len(RELATIONS)


@pytest.mark.parametrize("relation", IN_THE_TEXT)
def test_what_the_text_determines_is_put_down_to_the_text(relation, planted):
    following_it = next(
        one
        for one in planted[relation].heads
        if (one.layer, one.head) == (1, list(RELATIONS).index(relation))
    )
    assert following_it.mass > 0.85
    assert following_it.by_text > 0.8
    assert planted[relation].clear == ()


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_numbers_add_up(relation, planted):
    for one in planted[relation].heads:
        baselines = [one.even, one.exchanged, one.by_text]
        assert (one.skipped is not None) == (relation in SKIPPED)
        if one.skipped is not None:
            baselines.append(one.skipped)
        assert one.baseline == max(baselines)
        assert one.margin == one.mass - one.baseline
        assert one.interval[0] <= one.margin <= one.interval[1]


def test_random_heads_follow_nothing():
    clear = [
        head.is_clear
        for seed in range(4)
        for found in rank_all(random_weights(seed))
        for head in found.heads
    ]
    assert len(clear) == 4 * len(RELATIONS) * 6
    assert sum(clear) == 0


def test_structure_blind_heads_follow_nothing():
    for found in rank_all(blind_weights(*BLIND.values())):
        assert found.clear == (), found.relation


def test_the_text_baseline_is_fitted_to_other_questions():
    """A head that looks at a position at random in each question cannot be foretold there."""
    rng = np.random.default_rng(0)
    texts = [token_characters(question) for question in SAMPLE.questions]
    weights, looked_at = [], []
    for text in texts:
        looked_at.append(int(rng.integers(len(text))))
        weights.append(np.zeros((1, 1, len(text), len(text))))
        weights[-1][..., looked_at[-1]] = 1
    found = text_attention(weights, texts)
    foretold = [own[..., at].mean() for own, at in zip(found, looked_at, strict=True)]
    evenly = [1 / len(text) for text in texts]
    assert np.mean(foretold) == pytest.approx(np.mean(evenly), abs=0.02)
    for own in found:
        np.testing.assert_allclose(own.sum(axis=-1), 1)


def test_equal_questions_are_never_fitted_and_scored():
    texts = [token_characters("1/2-3")] * 8
    weights = [np.zeros((1, 1, 7, 7)) for _ in texts]
    for own in weights:
        own[..., 2] = 1
    for own in text_attention(weights, texts):
        np.testing.assert_allclose(own, 1 / 7)  # there is nothing to fit to


def test_a_margin_must_be_large_enough_to_matter():
    """With many questions, next to nothing can be sure; it is not called clear."""
    many = [parse(question) for question in nested(256).questions]
    closing = "opening to closing parenthesis"
    weak = rank(closing, planted_weights(closing, share=0.1, expressions=many), many).best
    assert weak.layer == 1
    assert 0 < weak.interval[0] < following.LEAST_MARGIN
    assert not weak.is_clear
    assert rank(closing, planted_weights(closing, share=0.5, expressions=many), many).clear


def test_intervals_hold_for_all_relations_together():
    """A relation's intervals are wider where others are searched for as well."""
    weights = random_weights(n_layers=1)
    alone = rank(SECOND, weights)
    among = next(one for one in rank_all(weights) if one.relation == SECOND)
    for one, other in zip(alone.heads, among.heads, strict=True):
        assert one.margin == other.margin
        assert np.diff(other.interval) > 1.1 * np.diff(one.interval)


def follow_divisions(skips):
    """Denominators attend to their divisions; what stands between does, too, unless skipped."""
    weights = random_weights()
    for own, expression in zip(weights, EXPRESSIONS, strict=True):
        attend(own[0, 0], RELATIONS[TO_DIVISION](expression), 0.8)
        if not skips:
            skipped = SKIPPED[PAST](expression)
            for query, _ in skipped:
                own[0, 0, query] = 0.2 / own.shape[-1]
            for query, keys in skipped:
                share = 0.8 / sum(query == other for other, _ in skipped)
                own[0, 0, query, list(keys)] += share / len(keys)
    return weights


@pytest.mark.parametrize("skips", [True, False])
def test_a_numerator_between_denominators_is_skipped_or_not(skips):
    """The third example of section 5.2."""
    relations = {name: RELATIONS[name] for name in (TO_DIVISION, PAST)}
    found = {one.relation: one for one in rank_all(follow_divisions(skips), relations=relations)}
    head = next(one for one in found[PAST].heads if (one.layer, one.head) == (0, 0))
    assert head.mass > 0.7
    assert head.is_clear == skips
    assert (head.skipped > head.by_text + 0.1) == (not skips)
    # Without what is skipped as a control, both heads look alike.
    assert (0, 0) in [(one.layer, one.head) for one in found[TO_DIVISION].clear]


def test_skipped_by_hand():
    question = "1/2*3/4"  # 2 and 4 are denominators, 3 stands between
    n = len(token_characters(question))
    weights = np.zeros((1, 1, n, n))
    weights[..., 0] = 1
    weights[0, 0, 3, [0, 2]] = 0.2, 0.8  # 2 to its division
    weights[0, 0, 7, [0, 6]] = 0.4, 0.6  # 4 to its division
    weights[0, 0, 5, [0, 2, 6]] = 0.5, 0.3, 0.2  # 3 to either
    found = rank(PAST, [weights], [parse(question)]).heads[0]
    assert found.mass == pytest.approx((0.8 + 0.6) / 2)
    assert found.exchanged == 0
    # A single question leaves nothing to fit to, so by the text all keys are alike.
    assert found.even == found.by_text == pytest.approx(1 / n)
    assert found.skipped == pytest.approx(1 / n + (0.3 + 0.2) / 2 - 1 / n)


def test_the_baselines_by_hand():
    question = "1/2-3"
    n = len(token_characters(question))
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


def test_characters_and_distance_by_hand():
    """Of many alike questions, half attend to the position before, half to that after."""
    questions = [f"{one}-{other}" for one in range(1, 10) for other in range(1, 10)]
    weights = [np.full((1, 1, 5, 5), 0.2) for _ in questions]
    for number, own in enumerate(weights):
        for at in (1, 3):
            own[0, 0, at] = 0
            own[0, 0, at, at + (-1) ** number] = 1
    found = rank(SECOND, weights, [parse(question) for question in questions]).heads[0]
    assert found.mass == pytest.approx(0.5, abs=0.01)
    assert found.by_text == pytest.approx(0.5, abs=0.05)


def test_a_margin_that_initial_weights_have_is_not_clear():
    weights = planted_weights(SECOND, share=0.5)
    best = rank(SECOND, weights).best
    assert best.is_clear
    low, high = best.interval
    assert rank(SECOND, weights, initial=low - 1e-6).clear
    found = rank(SECOND, weights, initial=low + 1e-6)
    assert found.clear == ()
    assert found.best.interval == (low, high)


def test_the_largest_margin_is_that_of_the_best_head():
    weights = planted_weights(SECOND)
    attention = following.ModelAttention.of(weights, EXPRESSIONS)
    greatest = following.largest_margin(SECOND, RELATIONS[SECOND], attention)
    assert greatest == pytest.approx(rank(SECOND, weights).heads[0].margin)


def test_few_questions_say_nothing():
    few = following.FEWEST - 1
    found = rank(SECOND, planted_weights(SECOND)[:few], EXPRESSIONS[:few])
    assert found.clear == ()
    assert {(one.interval, one.is_clear) for one in found.heads} == {(None, None)}
    enough = rank(SECOND, planted_weights(SECOND)[: few + 1], EXPRESSIONS[: few + 1])
    assert {one.is_clear for one in enough.heads} <= {True, False}
    assert len(rank(SECOND, planted_weights(SECOND)[:32], EXPRESSIONS[:32]).clear) == 1


def test_what_nobody_has_cannot_be_ranked():
    relation = "opening to closing parenthesis"
    weights = [np.full((1, 1, 5, 5), 0.2)] * 2
    found = rank(relation, weights, [parse("1/2"), "no"])
    assert (found.n_positions, found.n_questions, found.heads) == (0, 0, ())
    attention = following.ModelAttention.of(weights, ["no", "no"])
    assert following.largest_margin(relation, RELATIONS[relation], attention) == 0
