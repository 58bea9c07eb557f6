"""Operations that must change answers, and operations that must not."""

import json

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.data.store import open_store
from tp_transformer.interpret import surgery
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import Sample, draw, record, symbols
from tp_transformer.scoring.verdict import judge

QUESTIONS = tuple(f"What is {a} + {b}?" for a in (3, 14) for b in (1, 5, 22))
SAMPLE = Sample(questions=QUESTIONS, answers=("4", "8", "25", "15", "19", "36"), origin="sums")


def untrained():
    return tpt.build("tp-transformer-tiny", d_model=32)


def same(one, other):
    np.testing.assert_allclose(one.surprise, other.surprise, rtol=1e-5)
    return one.said == other.said


@pytest.fixture
def trained(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    return model, draw(model, store, module="arithmetic__add_or_sub", count=40)


def test_answers_are_judged_as_everywhere(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    sample = draw(model, store, module="arithmetic__add_or_sub", count=70, answered=False)
    asked = surgery.ask(model, sample)
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
    after = surgery.ask(model, many, layer=1, heads=(2, 0), operation=look)
    roles = record(model, many, [surgery.role_of(1)])[surgery.role_of(1)]
    assert sorted(seen) == list(range(48))
    for question, found in seen.items():
        np.testing.assert_allclose(found, roles[question][[2, 0]], atol=1e-5)
    assert same(after, surgery.ask(model, many))
    assert after.moved == 0


def test_equal_roles_can_be_exchanged_and_replaced_by_their_centre():
    model = untrained()
    model.encoder[1].self_attention.maps()["role"][0].zero_()  # what is left is the bias
    result = surgery.analyse(model, SAMPLE)
    assert result.n_clusters == 1
    for one in result.effects:
        if one.operation in {"zero", "random"}:
            assert abs(one.surprise) > 1e-4, one
        else:
            assert abs(one.surprise) < 1e-6, one
            assert one.changed == 0


def test_a_head_that_nobody_hears_can_lose_its_roles_and_others_cannot(trained):
    model, sample = trained
    weight, _ = model.encoder[0].self_attention.maps()["output"]
    weight.view(32, 4, 8)[:, 1] = 0
    answers = surgery.ask(model, sample)
    for operation in (surgery.zeroed(), surgery.randomised(0)):
        after = surgery.ask(model, sample, layer=0, heads=[1], operation=operation)
        assert same(after, answers)
        after = surgery.ask(model, sample, layer=0, heads=[0, 2, 3], operation=operation)
        assert after.surprise.mean() > answers.surprise.mean() + 1


def test_zeroed_roles_leave_what_is_left_of_the_attention_its_bias():
    model = untrained()
    name = "encoder.0.self_attention.output"
    _, bias = model.encoder[0].self_attention.maps()["output"]
    with model.trace(name) as trace:
        surgery.ask(model, SAMPLE, layer=0, heads=range(4), operation=surgery.zeroed())
        found = trace[name]
    for row, question in enumerate(QUESTIONS):
        own = found[row, : len(symbols(question))]
        torch.testing.assert_close(own, bias.expand_as(own))


def test_random_vectors_keep_the_lengths():
    roles = torch.randn(2, 5, 8)
    changed = surgery.randomised(3)(7, roles)
    torch.testing.assert_close(changed.norm(dim=-1), roles.norm(dim=-1))
    assert (changed - roles).abs().max() > 0.1
    torch.testing.assert_close(surgery.randomised(3)(7, roles), changed)
    assert not torch.equal(surgery.randomised(3)(8, roles), changed)


def test_planted_clusters_are_found_and_roles_move_to_their_centres():
    rng = np.random.default_rng(0)
    centres = 10 * rng.standard_normal((3, 4))
    which = rng.integers(3, size=90)
    vectors = centres[which] + 0.01 * rng.standard_normal((90, 4))
    found = surgery.cluster(vectors, 3, seed=0)
    clusters = surgery.nearest(vectors, found)
    np.testing.assert_allclose(found[clusters], centres[which], atol=0.05)
    roles = torch.from_numpy(vectors)[None]
    moved = surgery.moved_to(found[None])(0, roles)
    np.testing.assert_allclose(moved[0], found[clusters])
    further = surgery.as_far(0, surgery.moved_to(found[None]))(0, roles)
    torch.testing.assert_close((further - roles).norm(dim=-1), (moved - roles).norm(dim=-1))
    assert (further - moved).abs().max() > 1e-3


def test_exchanges_stay_within_clusters_or_leave_them():
    rng = np.random.default_rng(0)
    clusters = np.array([0, 0, 1, 1, 2, 1, 0, 0, 1])
    within, across = surgery.exchanges(clusters, rng)
    for order in (within, across):
        np.testing.assert_array_equal(order[order], np.arange(9))  # two by two
    moved = within != np.arange(9)
    assert moved.sum() == 8 == (across != np.arange(9)).sum()
    np.testing.assert_array_equal(clusters[within], clusters)
    away = across != np.arange(9)
    assert (clusters[across] != clusters)[away].all()
    for lonely in (np.zeros(1, np.int64), np.arange(4), np.zeros(4, np.int64)):
        for order in surgery.exchanges(lonely, rng):
            np.testing.assert_array_equal(order, np.arange(len(lonely)))


def test_reordered_roles_are_those_of_the_other_positions():
    roles = torch.randn(2, 3, 4)
    changed = surgery.reordered([np.array([[1, 0, 2], [0, 2, 1]])])(0, roles)
    torch.testing.assert_close(changed[0], roles[0, [1, 0, 2]])
    torch.testing.assert_close(changed[1], roles[1, [0, 2, 1]])


def test_two_positions_swap_their_roles():
    roles = torch.randn(2, 4, 3)
    changed = surgery.swapped([(0, 1), (3, 1)])(1, roles)
    torch.testing.assert_close(changed, roles[:, [0, 3, 2, 1]])
    model = untrained()
    pairs = [(8, len(symbols(question)) - 1) for question in QUESTIONS]
    after = surgery.ask(model, SAMPLE, layer=1, heads=[0], operation=surgery.swapped(pairs))
    assert np.abs(after.surprise - surgery.ask(model, SAMPLE).surprise).max() > 1e-4


def test_only_chosen_positions_are_operated_on():
    roles = torch.randn(2, 5, 4)
    changed = surgery.at([[], [1, 3]], surgery.zeroed())(1, roles)
    assert changed[:, [1, 3]].abs().max() == 0
    torch.testing.assert_close(changed[:, [0, 2, 4]], roles[:, [0, 2, 4]])
    torch.testing.assert_close(surgery.at([[], [1, 3]], surgery.zeroed())(0, roles), roles)


def test_the_whole_analysis_is_written_and_drawn(trained, tmp_path):
    model, sample = trained
    result = surgery.analyse(model, sample, n_clusters=6)
    assert result.right == result.n == 40
    names = list(dict.fromkeys(one.target.name for one in result.effects))
    assert names == ["head 0", "head 1", "head 2", "head 3", "all heads"]
    whole = {one.operation: one for one in result.effects if one.target.name == "all heads"}
    assert list(whole) == list(surgery.OPERATIONS)
    assert whole["zero"].changed > 20  # of 40
    assert whole["zero"].right == 40 - whole["zero"].changed
    assert whole["across clusters"].changed > whole["within clusters"].changed
    assert whole["zero"].moved == pytest.approx(1)
    assert whole["as far"].moved == pytest.approx(whole["centroid"].moved, rel=1e-5)
    assert 0 < whole["within clusters"].moved < whole["across clusters"].moved
    low, high = whole["zero"].changed_interval
    assert low < whole["zero"].changed / 40 <= high
    assert surgery.analyse(model, sample, n_clusters=6) == result
    files = surgery.save(result, Context.of(model, sample, folder=tmp_path / "m"), tmp_path)
    assert [file.suffix for file in files] == [".json", ".svg", ".pdf", ".png"]
    values = json.loads(files[0].read_text())
    assert len(values["effects"]) == 30
    assert values["meaning"][-1].startswith("all heads: zero ")


def test_chosen_heads_and_positions_come_with_controls():
    positions = [[9, 8]] * 6
    result = surgery.analyse(untrained(), SAMPLE, heads=[1], positions=positions, n_clusters=3)
    targets = {one.target.name: one.target for one in result.effects}
    assert [name for name, one in targets.items() if not one.is_control] == ["head 1"]
    assert targets["head 1"].positions == ((8, 9),) * 6
    assert {"random head 0", "random head 2", "random head 3"} < set(targets)
    assert all(1 not in one.heads for name, one in targets.items() if name.startswith("random"))
    drawn = targets["head 1, random positions"].positions
    assert all(len(own) == 2 and not {8, 9} & set(own) for own in drawn)
    every = surgery.analyse(untrained(), SAMPLE, heads=range(4), n_clusters=3)
    assert {one.target.name for one in every.effects} == {"heads 0, 1, 2, 3"}  # none to compare


def test_one_question_is_enough():
    sample = Sample(questions=("1 + 1?",), answers=("2",), origin="one question")
    result = surgery.analyse(untrained(), sample, heads=[0], n_controls=1)
    assert result.n_clusters <= 8
    assert result.effects[0].surprise_interval is None


def test_what_cannot_be_operated_on_is_refused():
    with pytest.raises(UserError, match="no roles to operate on"):
        surgery.analyse(tpt.build("transformer-tiny", d_model=32), SAMPLE)
    for wrong, message in (
        ({"heads": [4]}, "heads are 0 to 3"),
        ({"heads": []}, "heads are 0 to 3"),
        ({"n_clusters": 0}, "at least 1 cluster"),
        ({"layer": 9}, "layers 0 to 1"),
        ({"positions": [[0]]}, "6 questions but positions of 1"),
        ({"positions": [[99]] * 6}, "has the positions 0 to 15"),
    ):
        with pytest.raises(UserError, match=message):
            surgery.analyse(untrained(), SAMPLE, **wrong)
