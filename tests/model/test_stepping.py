"""The short way of a step against the cells' own forward pass, and when it is not taken."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.model import stepping, transformer
from tp_transformer.model.binding import BINDINGS

QUESTIONS = ["What is 3 + 4?", "Hi", "Let p be 12."]


def model_of(binding="hadamard", **fields):
    rank = 3 if binding == "low-rank" else None
    model = tpt.build("tp-transformer-tiny", binding=binding, rank=rank, **fields)
    return model.double().eval()


def steps(model, beam=1):
    """The scores of four steps, with several rows to a question after the first."""
    padded = model.vocabulary.encode(QUESTIONS).padded(model.vocabulary.pad)
    with torch.no_grad():
        state = model.begin(model.encode(torch.from_numpy(padded)), 4)
        scores = [model.step(torch.tensor([1, 1, 1]), state)]
        state.select(torch.arange(3).repeat_interleave(beam), None)
        generator = torch.Generator().manual_seed(1)
        for n_questions in (3, 2, 2):
            if n_questions == 2 and len(state.keys_values[0][0]) == 3:
                rows = torch.arange(3 * beam).view(3, beam)[[2, 0]].flip(1).flatten()
                state.select(rows, torch.tensor([2, 0]))
            previous = torch.randint(3, 72, (n_questions * beam,), generator=generator)
            scores.append(model.step(previous, state))
    return scores


@pytest.mark.parametrize("many", [1, 10_000])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("binding", BINDINGS)
def test_equals_the_forward_pass_of_the_cells(binding, beam, many, monkeypatch):
    monkeypatch.setattr(stepping, "MANY_QUERIES", many)
    model = model_of(binding)
    short = steps(model, beam)
    taken = []
    monkeypatch.setattr(transformer, "steppers", lambda decoder: taken.append(1) or [])
    for ours, expected in zip(short, steps(model, beam), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert taken


def test_is_taken_only_by_a_decoder_that_is_nothing_else():
    model = model_of(dropout=0.1)
    assert stepping.is_plain(model.decoder)
    model.decoder[1].train()
    assert not stepping.is_plain(model.decoder)
    model.eval()
    with model.trace("decoder.0.output"):
        assert not stepping.is_plain(model.decoder)
    with tpt.trace(model.decoder[1].cross_attention, "role"):
        assert not stepping.is_plain(model.decoder)
    linear = model.decoder[0].feed_forward.expand
    hook = linear.register_forward_hook(lambda *_: None)
    assert not stepping.is_plain(model.decoder)
    hook.remove()
    assert stepping.is_plain(model.decoder)
    model.decoder[0].feed_forward.expand = torch.nn.Sequential(linear)
    assert not stepping.is_plain(model.decoder)


def test_a_hook_is_heard():
    model = model_of()
    before = model.solve(QUESTIONS)
    model.decoder[1].register_forward_hook(lambda *arguments: torch.zeros_like(arguments[-1]))
    assert model.solve(QUESTIONS) != before


@pytest.mark.parametrize("at_once", [1, 20, 40])
def test_reading_in_parts_changes_nothing(at_once, monkeypatch):
    model = model_of()
    source = torch.from_numpy(model.vocabulary.encode(QUESTIONS).padded(model.vocabulary.pad))
    with torch.no_grad():
        whole = model.encode(source)
        monkeypatch.setattr(transformer, "READ_AT_ONCE", at_once)
        parts = model.encode(source)
    assert torch.equal(parts.mask, whole.mask)
    inside = whole.mask[:, 0, 0]
    torch.testing.assert_close(parts.state[inside], whole.state[inside], rtol=1e-10, atol=1e-12)
    assert parts.state[2, -2:].eq(0).all()  # so it was in parts: the last is only as wide as it is
    with model.trace("encoder.0.output") as trace, torch.no_grad():
        model.encode(source)
    assert trace["encoder.0.output"].shape[:2] == source.shape
