"""Operations do what they say, to the roles they are given and to no others."""

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.store import open_store
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.record import cluster, nearest, record
from tp_transformer.interpret.core.sample import Sample, draw, token_characters
from tp_transformer.scoring.verdict import judge

QUESTIONS = tuple(f"What is {a} + {b}?" for a in (3, 14) for b in (1, 5, 22))
SAMPLE = Sample(questions=QUESTIONS, answers=("4", "8", "25", "15", "19", "36"), origin="sums")


def untrained():
    return tpt.build("tp-transformer-tiny", d_model=32)


def same(one, other):
    np.testing.assert_allclose(one.surprise, other.surprise, rtol=1e-5)
    return one.tokens == other.tokens


@pytest.fixture(scope="module")
def trained(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    return model, draw(model, store, module="arithmetic__add_or_sub", count=40)


def test_answers_are_judged_as_everywhere(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    sample = draw(model, store, module="arithmetic__add_or_sub", count=70, answered=False)
    asked = operations.predict(model, sample)
    encoded = (model.vocabulary.encode(texts) for texts in (sample.questions, sample.answers))
    verdicts = judge(model, *encoded)
    np.testing.assert_array_equal(asked.right, verdicts.right)
    assert 0 < asked.right.sum() < 70
    np.testing.assert_allclose(asked.surprise, verdicts.loss, rtol=1e-4, atol=1e-5)


def test_an_operation_gets_each_questions_own_roles():
    model, seen = untrained(), {}

    def look(question, roles):
        seen[question] = roles.clone()
        return roles

    many = Sample(questions=QUESTIONS * 8, answers=SAMPLE.answers * 8, origin="more than a pass")
    after = operations.predict(model, many, layers=[1], heads=(2, 0), operation=look)
    roles = record(model, many, [operations.role_of(1)])[operations.role_of(1)]
    assert sorted(seen) == list(range(48))
    for question, found in seen.items():
        np.testing.assert_allclose(found, roles[question][[2, 0]], atol=1e-5)
    assert same(after, operations.predict(model, many))
    assert after.moved == after.touched == 0


def test_a_head_that_nobody_hears_can_lose_its_roles_and_others_cannot(trained):
    model, sample = trained
    weight, _ = model.encoder[0].self_attention.maps()["output"]
    weight.view(32, 4, 8)[:, 1] = 0
    answers = operations.predict(model, sample)
    for operation in (operations.zeroed(), operations.randomised(0)):
        after = operations.predict(model, sample, layers=[0], heads=[1], operation=operation)
        assert same(after, answers)
        after = operations.predict(model, sample, layers=[0], heads=[0, 2, 3], operation=operation)
        assert after.surprise.mean() > answers.surprise.mean() + 1


def test_zeroed_roles_leave_what_is_left_of_the_attention_its_bias():
    model = untrained()
    name = "encoder.0.self_attention.output"
    _, bias = model.encoder[0].self_attention.maps()["output"]
    with model.trace(name) as trace:
        operations.predict(model, SAMPLE, layers=[0], heads=range(4), operation=operations.zeroed())
        found = trace[name]
    for row, question in enumerate(QUESTIONS):
        own = found[row, : len(token_characters(question))]
        torch.testing.assert_close(own, bias.expand_as(own))


def test_random_vectors_keep_the_lengths():
    roles = torch.randn(2, 5, 8)
    changed = operations.randomised(3)(7, roles)
    torch.testing.assert_close(changed.norm(dim=-1), roles.norm(dim=-1))
    assert (changed - roles).abs().max() > 0.1
    torch.testing.assert_close(operations.randomised(3)(7, roles), changed)
    assert not torch.equal(operations.randomised(3)(8, roles), changed)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_roles_are_swapped_in_pairs(n):
    roles = torch.randn(2, n, 8)
    changed = operations.swapped(3)(7, roles)
    came_from = torch.cdist(changed[0], roles[0]).argmin(dim=1)
    torch.testing.assert_close(changed, roles[:, came_from])  # the same pairs in every head
    torch.testing.assert_close(came_from[came_from], torch.arange(n))
    assert (came_from != torch.arange(n)).sum() == n // 2 * 2
    torch.testing.assert_close(operations.swapped(3)(7, roles), changed)


def test_only_chosen_roles_are_swapped():
    roles = torch.randn(2, 9, 8)
    changed = operations.swapped(3, [[], [2, 5]])(1, roles)
    torch.testing.assert_close(changed, roles[:, [0, 1, 5, 3, 4, 2, 6, 7, 8]])
    torch.testing.assert_close(operations.swapped(3, [[], [2, 5]])(0, roles), roles)


def test_planted_clusters_are_found_and_roles_move_to_their_centres():
    rng = np.random.default_rng(0)
    centres = 10 * rng.standard_normal((3, 4))
    which = rng.integers(3, size=90)
    vectors = centres[which] + 0.01 * rng.standard_normal((90, 4))
    found = cluster(vectors, 3, seed=0).centroids
    clusters = nearest(vectors, found)
    np.testing.assert_allclose(found[clusters], centres[which], atol=0.05)
    roles = torch.from_numpy(vectors)[None]
    moved = operations.moved_to(found[None])(0, roles)
    np.testing.assert_allclose(moved[0], found[clusters])
    further = operations.as_far(0, operations.moved_to(found[None]))(0, roles)
    torch.testing.assert_close((further - roles).norm(dim=-1), (moved - roles).norm(dim=-1))
    assert (further - moved).abs().max() > 1e-3


def rows_of(vectors, sizes):
    """Vectors (position, d_head) of one head, as those of questions."""
    return [piece[None] for piece in np.split(vectors, np.cumsum(sizes)[:-1])]


def test_donors_are_of_the_same_cluster_and_of_another_as_far_away():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 3))
    which = (vectors[:, 0] > 0).astype(np.int64)
    roles, clusters = rows_of(vectors, [20, 40]), [one[None] for one in np.split(which, [20])]
    within, across = operations.donors(roles, clusters, rng)
    own, other = (np.concatenate(found, axis=1)[0] for found in (within, across))
    moved = np.linalg.norm(own - vectors, axis=1)
    touched = moved > 0
    assert touched.sum() > 50
    distance = np.linalg.norm(other - vectors, axis=1)
    np.testing.assert_array_equal(distance > 0, touched)
    np.testing.assert_allclose(distance, moved, rtol=operations.SAME_DISTANCE)
    np.testing.assert_array_equal(own[:, 0] > 0, which)
    assert ((other[:, 0] > 0) != which)[touched].all()
    assert len(np.unique(own, axis=0)) > 20  # it is not one role that all get


@pytest.mark.parametrize("kind", ["far apart", "a single one", "one for each"])
def test_clusters_without_a_match_have_no_donors(kind):
    rng = np.random.default_rng(0)
    which = {"far apart": np.arange(30) % 3, "a single one": np.zeros(30, np.int64)}
    which = which.get(kind, np.arange(30))
    vectors = 100.0 * which[:, None] + rng.standard_normal((30, 4))
    roles = rows_of(vectors, [30])
    for found in operations.donors(roles, [which[None]], rng):
        np.testing.assert_array_equal(found[0], roles[0])


def test_how_many_roles_were_moved_and_how_far_is_counted():
    def first_doubled(_, roles):
        return torch.cat([2 * roles[:, :1], roles[:, 1:]], dim=1)

    found = operations.predict(
        untrained(), SAMPLE, layers=[1], heads=[0, 3], operation=first_doubled
    )
    positions = sum(len(token_characters(question)) for question in QUESTIONS)
    assert found.touched == pytest.approx(6 / positions)
    assert found.moved == pytest.approx(1)


def test_only_chosen_positions_are_operated_on():
    roles = torch.randn(2, 5, 4)
    changed = operations.at([[], [1, 3]], operations.zeroed())(1, roles)
    assert changed[:, [1, 3]].abs().max() == 0
    torch.testing.assert_close(changed[:, [0, 2, 4]], roles[:, [0, 2, 4]])
    torch.testing.assert_close(operations.at([[], [1, 3]], operations.zeroed())(0, roles), roles)
