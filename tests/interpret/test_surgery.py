"""Operations that must change answers, and operations that must not."""

import json

import pytest

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.data.store import open_store
from tp_transformer.interpret import surgery
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import Sample, draw

QUESTIONS = tuple(f"What is {a} + {b}?" for a in (3, 14) for b in (1, 5, 22))
SAMPLE = Sample(questions=QUESTIONS, answers=("4", "8", "25", "15", "19", "36"), origin="sums")


def untrained():
    return tpt.build("tp-transformer-tiny", d_model=32)


@pytest.fixture
def trained(half_trained, sums_store):
    model, store = tpt.load(half_trained), open_store(sums_store)
    return model, draw(model, store, module="arithmetic__add_or_sub", count=40)


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
