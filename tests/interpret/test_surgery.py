"""Operations that must change answers, and operations that must not."""

import json

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.store import open_store
from tp_transformer.interpret import surgery
from tp_transformer.interpret.core.operations import role_of
from tp_transformer.interpret.core.sample import Sample, draw, token_characters
from tp_transformer.interpret.surgery import OPERATIONS, Effect, Target, _comparisons

QUESTIONS = tuple(f"What is {a} + {b}?" for a in (3, 14) for b in (1, 5, 22))
SAMPLE = Sample(questions=QUESTIONS, answers=("4", "8", "25", "15", "19", "36"), origin="sums")


def untrained():
    return tpt.build("tp-transformer-tiny", d_model=32)


@pytest.fixture(scope="module")
def trained(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    return model, draw(model, store, module="arithmetic__add_or_sub", count=40)


def test_equal_roles_can_be_exchanged_and_replaced_by_their_centre():
    model = untrained()
    model.encoder[1].self_attention.maps()["role"][0].zero_()  # what is left is the bias
    result = surgery(model, SAMPLE)
    assert result.n_clusters == 1
    for one in result.effects:
        if one.operation in {"zero", "random"}:
            assert abs(one.surprise) > 1e-4, one
        else:
            assert abs(one.surprise) < 1e-6, one
            assert one.changed == 0


SUMS = tuple((a, b) for a in range(2, 42, 3) for b in range(3, 93, 15))
MANY = Sample(
    questions=tuple(f"What is {a} + {b}?" for a, b in SUMS),
    answers=tuple(str(a + b) for a, b in SUMS),
    origin="many sums",
)


def deaf_but_for_one(model):
    """Only the first number of what a head binds is heard, and that loudly."""
    weight, _ = model.encoder[1].self_attention.maps()["output"]
    heard = weight.view(32, 4, 8)
    heard[:, :, 1:] = 0
    heard[:, :, 0] *= 30
    return model


def planted(spread):
    """Roles of two clusters, told apart by the sign of their first number and of nothing else.

    The other numbers are noise; the `spread` is that of the noise.
    """

    def edit(roles):
        noise = torch.randn(roles.shape, generator=torch.Generator().manual_seed(0))
        sign = torch.where(noise[..., :1] > 0, 1.0, -1.0)
        return torch.cat([2 * sign + 1e-4 * noise[..., :1], spread * noise[..., 1:]], dim=-1)

    return {role_of(1): edit}


def test_roles_of_which_only_the_cluster_matters_are_recognised():
    model = deaf_but_for_one(untrained())
    with model.trace(edit=planted(spread=1.0)):
        result = surgery(model, MANY, clusters=2)
    whole = {one.operation: one for one in result.effects if one.target.name == "all heads"}
    assert whole["same cluster"].changed <= 1
    assert whole["centroid"].changed <= 1
    assert whole["other cluster"].changed > 20
    assert whole["as far as centroid"].changed > 10
    assert whole["same cluster"].touched == whole["other cluster"].touched > 0.5
    assert whole["same cluster"].moved == pytest.approx(whole["other cluster"].moved, rel=0.02)
    about_clusters = [one for one in result.comparisons if one.first.operation != "swap"]
    assert all(one.says == "fewer" for one in about_clusters)
    said = "The last two are both fewer in head 0, head 1, head 2, head 3, all heads"
    assert said in result.summary()[-1]


def test_clusters_too_far_apart_for_a_control_have_no_verdict():
    model = deaf_but_for_one(untrained())
    with model.trace(edit=planted(spread=0.05)):
        result = surgery(model, MANY, clusters=2)
    found = [one for one in result.effects if one.operation == "other cluster"]
    assert all(one.touched == 0 and one.changed == 0 for one in found)
    assert {one.first.operation for one in result.comparisons} == {"swap", "centroid"}
    text = " ".join(result.summary())
    assert "nothing to compare, because no role was moved (head 0, head 1, head 2, head 3" in text
    assert "nothing is said about clusters" in text


@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_model_gets_no_verdict(seed):
    """Further movement changes more answers; but what is compared is moved as far."""
    torch.manual_seed(seed)
    result = surgery(untrained(), MANY, seed=seed)
    assert sum(one.changed for one in result.effects) > 50
    assert len(result.comparisons) == 15
    assert not any(one.is_clear for one in result.comparisons)
    assert "nothing is said about clusters" in result.summary()[-1]
    for one in result.comparisons:
        assert one.first.moved == pytest.approx(one.second.moved, rel=0.03)


def test_comparisons_are_of_the_same_questions():
    target = Target(name="head 0", heads=(0,), positions=None, is_control=False)

    def effect(operation, is_changed, touched=1.0):
        return Effect(
            target=target,
            operation=operation,
            right=0,
            is_changed=tuple(is_changed),
            surprise=0.0,
            surprise_interval=None,
            touched=touched,
            moved=0.5,
        )

    never, always = np.zeros(12, bool), np.ones(12, bool)
    found = _comparisons(
        [
            effect("centroid", never),
            effect("as far as centroid", always),
            effect("same cluster", always, touched=0.0),
            effect("other cluster", never, touched=0.0),
        ]
    )
    assert [(one.only_first, one.only_second) for one in found] == [(0, 12)]
    assert found[0].p_value == pytest.approx(2 / 2**12)
    assert found[0].says == "fewer"


def test_the_whole_analysis_is_written_and_drawn(trained, tmp_path):
    model, sample = trained
    result = surgery(model, sample, clusters=6)
    assert result.right == result.n == 40
    names = list(dict.fromkeys(one.target.name for one in result.effects))
    assert names == ["head 0", "head 1", "head 2", "head 3", "all heads"]
    whole = {one.operation: one for one in result.effects if one.target.name == "all heads"}
    assert list(whole) == list(OPERATIONS)
    assert whole["zero"].changed > 20  # of 40
    assert whole["zero"].right == 40 - whole["zero"].changed
    assert whole["zero"].moved == pytest.approx(1)
    for moved, as_far in (("centroid", "as far as centroid"), ("swap", "as far as swap")):
        assert whole[as_far].moved == pytest.approx(whole[moved].moved, rel=1e-5)
    low, high = whole["zero"].interval
    assert low < whole["zero"].share <= high
    assert surgery(model, sample, clusters=6) == result
    files = result.save(tmp_path)
    assert [file.suffix for file in files] == [".json", ".svg", ".pdf", ".png"]
    values = json.loads(files[0].read_text())
    assert len(values["effects"]) == 40
    assert len(values["comparisons"]) == 15
    (row,) = (row for row in result.tables()[0].rows if row[0] == "all heads")
    assert row[1] == f"{100 * whole['zero'].share:.0f}\n{100 * low:.0f}-{100 * high:.0f}"
    assert "given the right tokens before it" in values["summary"][0]
    assert values["summary"][1] == "The heads serve as controls for each other."


def test_chosen_heads_and_positions_come_with_controls():
    result = surgery(untrained(), SAMPLE, head=1, at="numbers", clusters=3)
    digits = tuple(
        tuple(at for at, character in enumerate(question, 1) if character.isdigit())
        for question in QUESTIONS
    )
    targets = {one.target.name: one.target for one in result.effects}
    assert [name for name, one in targets.items() if not one.is_control] == ["head 1"]
    assert targets["head 1"].positions == digits
    n_positions = sum(len(token_characters(question)) for question in QUESTIONS)
    here = sum(map(len, digits)) / n_positions
    for one in result.effects:
        # Donors may not be found, and of an odd number of roles one is not swapped.
        if one.operation in {"zero", "random", "centroid", "as far as centroid"}:
            assert one.touched == pytest.approx(here), one
    assert {"random head 0", "random head 2", "random head 3"} < set(targets)
    assert all(1 not in one.heads for name, one in targets.items() if name.startswith("random"))
    drawn = targets["head 1, random positions"].positions
    for own, others in zip(digits, drawn, strict=True):
        assert len(own) == len(others)
        assert not {*own} & {*others}
    beside = [one for one in result.comparisons if one.first.operation == "zero"]
    assert len(beside) == 4  # three other heads, and other positions
    assert "without the roles of head 1, compared with random head 0: no clear" in " ".join(
        result.summary()
    )
    each = surgery(untrained(), SAMPLE, at="numbers", clusters=3)
    beside = [one for one in each.comparisons if one.first.operation == "zero"]
    assert [one.second.target.name for one in beside] == [
        f"{one.first.target.name}, random positions" for one in beside
    ]
    assert len(beside) == 5


def test_one_question_is_enough():
    sample = Sample(questions=("1 + 1?",), answers=("2",), origin="one question")
    result = surgery(untrained(), sample, head=0)
    assert result.n_clusters <= 8
    assert result.effects[0].surprise_interval is None
    assert "1 question, " in result.summary()[0]
    (table,) = result.tables()
    assert [row[0] for row in table.rows] == ["head 0", *(f"random head {n}" for n in (1, 2, 3))]
    for cell, effect in zip(table.rows[0][1:], result.effects, strict=False):
        low, high = (100 * end for end in effect.interval)
        share = f"{100 * effect.share:.0f}\n{low:.0f}-{high:.0f}"
        assert cell == (share if effect.touched else "-")
    assert "Fewer than 10 questions" in " ".join(result.summary())
