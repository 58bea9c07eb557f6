"""Subclasses and hooks take effect in training, scoring and decoding, in both layouts."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.model.layout import Packed, Padded

QUESTIONS = ["What is 3 + 4?", "Hi", "Let p be 12."]


def model_of():
    return tpt.build("tp-transformer-tiny").double().eval()


def test_a_hook_is_heard():
    model = model_of()
    before = model.solve(QUESTIONS)
    model.decoder[1].register_forward_hook(lambda *arguments: torch.zeros_like(arguments[-1]))
    assert model.solve(QUESTIONS) != before


class Silent(tpt.Transformer):
    """Reads nothing of a question."""

    def encode(self, source, layout=None):
        memory = super().encode(source, layout)
        return type(memory)(torch.zeros_like(memory.state), memory.layout)


class Doubled(tpt.Transformer):
    """Is twice as sure."""

    def decode(self, target, memory, layout=None):
        return 2 * super().decode(target, memory, layout)


def replace_cells(model, kind):
    """Give a model's cells, or a part of each, another class with the same weights."""
    for module in model.modules():
        if type(module) in kind.__mro__[1:] and type(module) is kind.__mro__[1]:
            module.__class__ = kind


class HalfCell(type(tpt.build("tp-transformer-tiny").encoder[0])):
    """Hands on half of its state."""

    def forward(self, state, pattern):
        return super().forward(state, pattern) / 2


class HalfDecoderCell(type(tpt.build("tp-transformer-tiny").decoder[0])):
    """Hands on half of its state."""

    def forward(self, *arguments):
        return super().forward(*arguments) / 2


class Uniform(type(tpt.build("tp-transformer-tiny").encoder[0].self_attention)):
    """Attends to all positions alike."""

    def attend(self, query, key, value, role, pattern, **options):
        return super().attend(torch.zeros_like(query), key, value, role, pattern, **options)


@pytest.mark.parametrize("kind", [Silent, Doubled, HalfCell, HalfDecoderCell, Uniform])
def test_a_subclass_is_honoured_in_every_layout(kind):
    """By training, scoring and decoding alike, whatever it overrides."""
    torch.manual_seed(0)
    model = model_of()
    plain = {layout: loss_of(model, layout) for layout in (Padded, Packed)}
    answers = model.solve(QUESTIONS)
    if issubclass(kind, tpt.Transformer):
        model.__class__ = kind
    else:
        replace_cells(model, kind)
    changed = {layout: loss_of(model, layout) for layout in (Padded, Packed)}
    torch.testing.assert_close(changed[Padded], changed[Packed], rtol=1e-10, atol=0)
    assert abs(changed[Packed] - plain[Packed]) > 1e-3
    if kind is not Doubled:  # which does not change which token is the likeliest
        assert model.solve(QUESTIONS) != answers


def loss_of(model, layout):
    vocabulary = model.vocabulary
    rows = vocabulary.encode(QUESTIONS), vocabulary.encode(["7", "12", ""])
    batch = tpt.Batch.from_ragged(*rows, vocabulary.pad, layout)
    return model.loss(batch).total.detach()


def test_a_packed_memory_is_the_padded_one():
    model = model_of()
    encoded = model.vocabulary.encode(QUESTIONS)
    states = []
    with torch.no_grad():
        for kind in (Padded, Packed):
            ids, layout = kind.lay_out(encoded, model.vocabulary.pad)
            memory = model.encode(ids, layout)
            states.append(model.begin(memory, 3))
            assert torch.equal(memory.layout.filled, torch.from_numpy(encoded.padded(0)) != 0)
    one, other = states
    inside = one.memory_mask[:, 0, 0] == 0
    assert torch.equal(one.memory_mask, other.memory_mask)
    for pair, expected in zip(other.memory, one.memory, strict=True):
        for found, wanted in zip(pair, expected, strict=True):
            found, wanted = (x.transpose(1, 2)[inside] for x in (found, wanted))
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_what_a_hook_keeps_of_solve_can_be_trained_on():
    model = model_of()
    kept = []
    model.encoder[0].register_forward_hook(lambda *arguments: kept.append(arguments[-1]))
    model.solve(QUESTIONS)
    weight = torch.ones(model.config.d_model, dtype=torch.float64, requires_grad=True)
    (kept[0] @ weight).sum().backward()
    assert weight.grad.abs().sum() > 0


def test_a_model_trains_after_it_solved():
    """Nothing that `solve` computed once and kept is in the way of gradients."""
    model = model_of()
    model.solve(QUESTIONS)
    for layout in (Padded, Packed):
        rows = model.vocabulary.encode(QUESTIONS), model.vocabulary.encode(["7", "12", ""])
        batch = tpt.Batch.from_ragged(*rows, model.vocabulary.pad, layout)
        model.loss(batch).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
