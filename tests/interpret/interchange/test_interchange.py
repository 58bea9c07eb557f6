"""Machines that go by roles alone, or by none, answer as they must when roles are exchanged."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer import UserError
from tp_transformer.interpret import interchange
from tp_transformer.interpret.core import operations
from tp_transformer.interpret.core.nested import drawn_sample, nested_fractions
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.interchange import analysis
from tp_transformer.interpret.interchange.result import (
    CONTROL_DRAWS,
    EXCHANGES,
    REVERSED_COPIES,
    UNREVERSED_COPIES,
)

ROLE = operations.role_of(0)


def interchanges(model, asked, layer):
    return analysis.interchanges(model, asked, [layer], range(model.config.n_heads), seed=0)


class Machine:
    """Answers questions; it reads each token at the place that its role names, if told to.

    A role is the place, one-hot. A role that names no place, or one that is taken, makes it give no
    answer at all.
    """

    config = SimpleNamespace(binding="hadamard", n_layers=2, n_heads=3)

    def solve(self, questions):
        return [read(dict(enumerate(token_characters(question)))) for question in questions]


def read(placed):
    a, b, c, d = (int(placed[at]) for at in sorted(placed) if placed[at].isdigit())
    return str(Fraction(a * d, b * c))


def one_hot(question):
    return torch.eye(len(token_characters(question)))[None].expand(3, -1, -1)


def is_one_hot(roles):
    return bool(torch.equal(roles.sort(dim=-1).values[..., -1:], torch.ones_like(roles[..., :1])))


def by_roles(model, questions, *, layers, heads, operation):
    said = []
    for number, question in enumerate(questions):
        roles = operation(number, one_hot(question))
        places = roles[0].argmax(dim=-1).tolist()
        if is_one_hot(roles) and len(set(places)) == len(places):
            said.append(read(dict(zip(places, token_characters(question), strict=True))))
        else:
            said.append("")
    return said


def test_who_goes_by_roles_answers_as_if_numbers_were_exchanged(monkeypatch):
    monkeypatch.setattr(operations, "solve", by_roles)
    found = interchanges(Machine(), nested_fractions(20), 1)
    assert [one.layers for one in found] == [(1,), (0, 1)]
    for one in found:
        assert [each.letters for each in one.exchanges] == ["ab", "ac", "bd", "cd"]
        for each in one.exchanges:
            assert (each.n, each.swapped.exchanged, each.swapped.kept) == (20, 20, 0)
            assert (each.swapped.otherwise, each.moved.exchanged, each.moved.kept) == (0, 0, 0)
        for test in (one.against_moved, one.against_others):
            assert (test.count, test.n, test.expected) == (80, 80, 0.25)
            assert test.p_value == pytest.approx(4 * 0.25**80)  # four tests
    assert found[0].rows()[0] == ("exchanged, layer 1", "80", "80", "0.0", "0")
    assert found[0].rows()[1] == ("random directions, layer 1", "80", "0.0", "0.0", "0.0")
    assert "the answer follows the roles more often than in both controls" in found[1].summary()
    assert "in every layer: " in found[1].summary()


def test_roles_are_exchanged_in_all_heads_of_the_layers_that_are_named(monkeypatch):
    asked = []

    def note(model, questions, *, layers, heads, operation):
        asked.append((tuple(layers), tuple(heads)))
        return model.solve(questions)

    monkeypatch.setattr(operations, "solve", note)
    interchanges(Machine(), nested_fractions(5), 1)
    n = (len(EXCHANGES) + len(REVERSED_COPIES + UNREVERSED_COPIES)) * (1 + CONTROL_DRAWS)
    assert asked == [((1,), (0, 1, 2))] * n + [((0, 1), (0, 1, 2))] * n


def test_who_does_not_go_by_roles_answers_as_before(monkeypatch):
    def unmoved(model, questions, **_):
        return model.solve(questions)

    monkeypatch.setattr(operations, "solve", unmoved)
    for one in interchanges(Machine(), nested_fractions(20), 0):
        for each in one.exchanges:
            assert (each.n, each.swapped.exchanged, each.swapped.kept) == (20, 0, 20)
            assert (each.moved.exchanged, each.moved.kept) == (0, 20 * CONTROL_DRAWS)
        for test in (one.against_moved, one.against_others):
            assert (test.count, test.n, test.p_value) == (0, 0, 1)
        assert "is not clear" in one.summary()
        copied = one.sides.reversed, one.sides.unreversed
        assert {(own.kept, own.moved_kept, own.flipped) for own in copied} == {(1, 1, 0)}
        assert "not clear that roles act as sides" in one.summary()


@pytest.mark.parametrize("numerators", ["ad", "ac"])
def test_who_goes_by_sides_keeps_the_answer_if_they_are_the_same(numerators, monkeypatch):
    """A role is the side of a number; who sees a number on the other side answers accordingly."""
    asked = nested_fractions(20)

    def by_sides(model, questions, *, operation, **_):
        said = []
        for number, fraction in enumerate(asked):
            roles = torch.zeros(3, len(fraction.question) + 2, 2)
            for letter in "abcd":
                roles[:, fraction.position(letter), int(letter in numerators)] = 1
            after = operation(number, roles.clone())
            places = [fraction.position(letter) for letter in "abcd"]
            is_moved = (after != roles).any(dim=-1)[0, places].tolist()
            changed = [letter for letter, moved in zip("abcd", is_moved, strict=True) if moved]
            if not is_one_hot(after[:, places]):
                said.append("")
            elif len(changed) == 1:
                said.append(fraction.flipped(changed[0]))
            else:
                said.append(fraction.answer)
        return said

    monkeypatch.setattr(operations, "solve", by_sides)
    for one in interchanges(Machine(), asked, 0):
        same, other = one.sides.reversed, one.sides.unreversed
        if numerators == "ac":
            same, other = other, same
        assert (same.kept, same.moved_kept, same.flipped) == (1, 1, 0)  # nothing was changed
        assert (other.kept, other.moved_kept, other.flipped, other.moved_flipped) == (0, 0, 1, 0)
        assert one.sides.difference == (1 if numerators == "ad" else -1)
        said = "reversed" if numerators == "ad" else "unreversed"
        assert f"roles act as {said} sides ({one.sides.difference * 100:+.0f}" in one.summary()
        assert one.side_rows()[0][0] == f"c as b, d as a, {one.where}"


def test_who_goes_by_places_keeps_no_answer_when_a_role_is_copied(monkeypatch):
    monkeypatch.setattr(operations, "solve", by_roles)
    for one in interchanges(Machine(), nested_fractions(20), 0):
        assert one.sides.reversed.kept == one.sides.unreversed.kept == 0
        assert "not clear that roles act as sides" in one.summary()


def test_who_is_merely_disturbed_gives_any_of_the_answers(monkeypatch):
    """After an exchange, but not after the control, it answers as after any exchange at random."""
    rng = np.random.default_rng(0)
    asked = nested_fractions(60)
    by_question = {one.question: one for one in asked}

    def disturbed(model, questions, *, layers, heads, operation):
        if is_one_hot(operation(0, one_hot(questions[0]))):
            exchanges = rng.choice(EXCHANGES, len(questions))
            return [
                by_question[question].exchanged(letters).answer
                for question, letters in zip(questions, exchanges, strict=True)
            ]
        return model.solve(questions)

    monkeypatch.setattr(operations, "solve", disturbed)
    for one in interchanges(Machine(), asked, 0):
        assert one.against_moved.p_value < 1e-6
        assert one.against_others.p_value > 0.05
        assert "is not clear" in one.summary()


def test_only_what_is_answered_before_and_after_counts(monkeypatch):
    asked = nested_fractions(10)
    unknown = asked[0].exchanged("ac").question

    class Forgetful(Machine):
        def solve(self, questions):
            return ["" if one == unknown else read(dict(enumerate(one))) for one in questions]

    monkeypatch.setattr(operations, "solve", by_roles)
    for one in interchanges(Forgetful(), asked, 0):
        assert [each.n for each in one.exchanges] == [9] * 4


def test_a_model_that_knows_nothing(tmp_path):
    found = interchange(tpt.build("tp-transformer-tiny", d_model=32), drawn_sample(3, 0), layer=0)
    assert [one.layers for one in found.interchanges] == [(0,), (0, 1)]
    for one in found.interchanges:
        assert all(each.n == each.swapped.kept == 0 for each in one.exchanges)
        assert "the model answers no question" in one.summary()
        assert one.against_moved.p_value == one.against_others.p_value == 1
    assert len(found.summary()) == 2
    assert found.tables() == []
    assert [file.name for file in found.save(tmp_path)] == ["interchange.json"]


def test_a_model_without_roles_is_refused():
    with pytest.raises(UserError, match="needs roles"):
        interchange(tpt.build("transformer-tiny", d_model=32), drawn_sample(3, 0))


def test_one_head_is_chosen(monkeypatch):
    asked = []

    def note(model, questions, *, layers, heads, operation):
        asked.append(tuple(heads))
        return model.solve(questions)

    model = tpt.build("tp-transformer-tiny", d_model=32)
    monkeypatch.setattr(model, "solve", Machine().solve)
    monkeypatch.setattr(operations, "solve", note)
    interchange(model, drawn_sample(3, 0), head=2)
    assert set(asked) == {(2,)}
    with pytest.raises(UserError, match="heads 0 to 3, not 4"):
        interchange(model, drawn_sample(3, 0), head=4)


def test_roles_of_several_layers_are_operated_on_at_once():
    model = tpt.build("tp-transformer-tiny", d_model=32)
    sample = Sample(questions=("1/2", "What is 3/4?"), answers=("1/2", "3/4"), origin="fractions")
    after = operations.predict(
        model, sample, layers=[0, 1], heads=range(4), operation=operations.zeroed()
    )
    with torch.no_grad():
        for cell in model.encoder:
            for part in cell.self_attention.maps()["role"]:
                part.zero_()
    np.testing.assert_allclose(
        after.surprise, operations.predict(model, sample).surprise, rtol=1e-5
    )


def test_answers_are_decoded_under_the_operation(half_trained):
    model = tpt.load(half_trained)
    questions = ["What is 3 + 4?", "Calculate 12 - 5.", "7 + 1"]
    heads, unmoved = range(4), operations.replaced
    roles = record(
        model, Sample(questions=tuple(questions), answers=("1",) * 3, origin=""), [ROLE]
    )[ROLE]
    said = operations.solve(model, questions, layers=[0], heads=heads, operation=unmoved(roles))
    assert said == model.solve(questions)
    said = operations.solve(
        model, questions, layers=[0], heads=heads, operation=operations.zeroed()
    )
    with torch.no_grad():
        for part in model.encoder[0].self_attention.maps()["role"]:
            part.zero_()
    assert said == model.solve(questions)
