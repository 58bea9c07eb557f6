"""Bare modules against the modules they were made from, and when they are not used."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.layout import padded
from tp_transformer.data.layout.packed import Packed
from tp_transformer.data.layout.padded import Padded
from tp_transformer.model import transformer
from tp_transformer.model.bare import bare
from variants import DISTINCT

QUESTIONS = ["What is 3 + 4?", "Hi", "Let p be 12."]


def model_of(binding="hadamard", **fields):
    rank = 3 if binding == "low-rank" else None
    model = tpt.build("tp-transformer-tiny", binding=binding, rank=rank, **fields)
    return model.double().eval()


def steps(model, beam=1):
    """The scores of four steps, with several rows to a question after the first."""
    source = torch.from_numpy(model.vocabulary.encode(QUESTIONS).padded(model.vocabulary.pad))
    with torch.no_grad():
        state = model.begin(model.encode(source), 4)
        scores = [model.step(torch.tensor([1, 1, 1]), state)]
        state.select(torch.arange(3).repeat_interleave(beam), None)
        generator = torch.Generator().manual_seed(1)
        for n_questions in (3, 2, 2):
            if n_questions == 2 and len(state.memory[0][0]) == 3:
                rows = torch.arange(3 * beam).view(3, beam)[[2, 0]].flip(1).flatten()
                state.select(rows, torch.tensor([2, 0]))
            previous = torch.randint(3, 72, (n_questions * beam,), generator=generator)
            scores.append(model.step(previous, state))
    return scores


@pytest.mark.parametrize("many", [1, 10_000])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("binding", DISTINCT)
def test_equals_the_modules_themselves(binding, beam, many, monkeypatch):
    monkeypatch.setattr(padded, "MANY_ROWS", many)
    model = model_of(binding)
    found = steps(model, beam)
    used = []
    monkeypatch.setattr(transformer, "bare", lambda module: used.append(1) or module)
    for ours, expected in zip(found, steps(model, beam), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert used


def test_is_used_only_where_it_changes_nothing():
    model = model_of(dropout=0.1)
    cell = model.decoder[1]
    assert bare(cell) is not cell
    cell.feed_forward.train()
    assert bare(cell) is cell
    model.eval()
    with model.trace("decoder.0.output"):
        assert bare(cell) is cell
    with tpt.trace(cell.cross_attention, "role"):
        assert bare(cell) is cell
    hook = cell.feed_forward.expand.register_forward_hook(lambda *_: None)
    assert bare(cell) is cell
    hook.remove()
    assert bare(cell) is not cell


def test_shares_the_weights():
    model = model_of()
    copied = bare(model.decoder[0])
    assert copied.feed_forward.expand.weight is model.decoder[0].feed_forward.expand.weight


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


def test_a_forward_set_on_an_instance_is_heard():
    model = model_of()
    before = model.solve(QUESTIONS)
    original = model.decoder[1].forward
    model.decoder[1].forward = lambda *arguments: 0 * original(*arguments)
    assert model.solve(QUESTIONS) != before


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
