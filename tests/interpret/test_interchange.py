"""Machines that go by roles alone, or by none, answer as they must when roles are exchanged."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.interpret import interchange, operations
from tp_transformer.interpret.interchange import interchanges, meaning_of
from tp_transformer.interpret.nested import nested_fractions
from tp_transformer.interpret.record import Sample, symbols


def machine(goes_by_roles):
    """Judges answers like `ask`: it reads each symbol at the place that its role names, or not.

    A role is the place, one-hot. What has a role that names none makes it give no answer at all.
    """

    def ask(model, sample, *, layers=(), heads=(), operation=None):
        right = []
        for number, question in enumerate(sample.questions):
            text = symbols(question)
            roles = torch.eye(len(text))[None].expand(3, -1, -1)
            if operation is not None and goes_by_roles:
                roles = operation(number, roles)
            said = None
            if bool((roles.amax(dim=-1) > 0.99).all()):
                placed = dict(zip(roles[0].argmax(dim=-1).tolist(), text, strict=True))
                a, b, c, d = (int(placed[at]) for at in sorted(placed) if placed[at].isdigit())
                said = str(Fraction(a * d, b * c))
            right.append(said == sample.answers[number])
        return SimpleNamespace(right=np.array(right))

    return ask


MODEL = SimpleNamespace(config=SimpleNamespace(binding="hadamard", n_layers=2, n_heads=3))


def test_who_goes_by_roles_answers_as_if_numbers_were_exchanged(monkeypatch):
    monkeypatch.setattr(interchange, "ask", machine(goes_by_roles=True))
    found = interchanges(MODEL, nested_fractions(20), layer=1)
    assert [(one.letters, one.layers) for one in found] == [
        (letters, layers) for letters in ("ab", "ac", "bd", "cd") for layers in ((1,), (0, 1))
    ]
    for one in found:
        assert (one.n, one.swapped.exchanged, one.swapped.kept) == (20, 20, 0)
        assert (one.moved.exchanged, one.moved.kept) == (0, 0)
        assert one.is_clear
    lines = meaning_of(found)
    assert "in layer 1: of 80 answers the model gives 80 as if the numbers were" in lines[0]
    assert "random directions, 0 and 0. That is clearly more than the control for a and" in lines[0]
    assert "in every layer: " in lines[1]


def test_who_does_not_go_by_roles_answers_as_before(monkeypatch):
    monkeypatch.setattr(interchange, "ask", machine(goes_by_roles=False))
    found = interchanges(MODEL, nested_fractions(20), layer=0)
    for one in found:
        assert (one.n, one.swapped.exchanged, one.swapped.kept) == (20, 0, 20)
        assert (one.moved.exchanged, one.moved.kept) == (0, 20)
        assert not one.is_clear
    assert "for no two numbers clearly more" in meaning_of(found)[0]


@pytest.mark.parametrize(("config", "n"), [("tp-transformer-tiny", 8), ("transformer-tiny", 0)])
def test_a_model_that_knows_nothing_or_has_no_roles(config, n):
    found = interchanges(tpt.build(config, d_model=32), nested_fractions(3), layer=0)
    assert len(found) == n
    assert all(one.n == 0 and one.swapped is None and not one.is_clear for one in found)
    assert all("there is no question" in line for line in meaning_of(found))


def test_roles_of_several_layers_are_operated_on_at_once():
    model = tpt.build("tp-transformer-tiny", d_model=32)
    sample = Sample(questions=("1/2", "What is 3/4?"), answers=("1/2", "3/4"), origin="fractions")
    after = operations.ask(
        model, sample, layers=[0, 1], heads=range(4), operation=operations.zeroed()
    )
    with torch.no_grad():
        for cell in model.encoder:
            for part in cell.self_attention.maps()["role"]:
                part.zero_()
    np.testing.assert_allclose(after.surprise, operations.ask(model, sample).surprise, rtol=1e-5)
