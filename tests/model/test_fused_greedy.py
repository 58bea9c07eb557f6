"""Greedy search by the C kernel finds the answers of the search with the cells."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.layout.packed import Packed
from tp_transformer.foundation import native
from tp_transformer.model.decoding import greedy

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not compiled")

QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "1"]


def model_of(**fields):
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", **fields).eval()


@pytest.mark.parametrize("binding", ["hadamard", "none"])
@pytest.mark.parametrize("n_questions", [1, 2, 11, 12, 13])
@torch.no_grad()
def test_greedy_search_is_that_of_the_cells(monkeypatch, called, binding, n_questions):
    """Lengths of 1 to the maximum, few and many rows, ends of answers at different steps."""
    model = model_of(binding=binding, embedding_binding=binding != "none", n_positions=40)
    # So that answers differ, and end at different steps.
    model.embedding.symbols.weight[model.vocabulary.eos] *= 2 if binding == "hadamard" else 8
    for cell in model.decoder:
        cell.self_attention.in_proj.weight.mul_(3)
        cell.cross_attention.in_proj.weight.mul_(6)
    longest = model.n_positions - 2
    questions = [str(10**row)[-longest:] for row in (0, 37, 1, 7, 8, 15, 16, 2, 3, 5, 6, 9, 10)]
    encoded = model.vocabulary.encode(questions[:n_questions])
    ids, layout = Packed.lay_out(encoded, model.vocabulary.pad)
    for max_length in (1, 8, 23, 40):
        found = greedy(model, ids, max_length, layout)
        with monkeypatch.context() as without:
            without.setattr(native, "library", lambda: None)
            assert torch.equal(found, greedy(model, ids, max_length, layout))
    assert "decoder_step" not in called
    assert called.count("decoder_greedy") >= 4
    if n_questions == 13:
        lengths = (found != model.vocabulary.pad).sum(dim=1)
        assert lengths.min() < lengths.max()


@torch.no_grad()
def test_greedy_search_calls_a_step_of_another_object(called):
    """A wrapper with the state of a model may compute other logits."""
    model = model_of()
    vocabulary = model.vocabulary
    ids, layout = Packed.lay_out(vocabulary.encode(QUESTIONS), vocabulary.pad)

    class Wrapper:
        def __init__(self):
            self.vocabulary, self.encode, self.begin = vocabulary, model.encode, model.begin

        def step(self, previous, state):
            return -model.step(previous, state)

    assert not torch.equal(greedy(Wrapper(), ids, 3, layout), greedy(model, ids, 3, layout))
    assert called.count("decoder_step") == 3


@torch.no_grad()
def test_the_largest_logit_is_that_of_torch(monkeypatch):
    """Of equal logits the first, and NaN before all others."""
    model = model_of()
    ids, layout = Packed.lay_out(model.vocabulary.encode(QUESTIONS), model.vocabulary.pad)
    weight = model.embedding.symbols.weight
    weight[40:] = weight[10]
    assert greedy(model, ids, 4, layout).max() < 40
    weight[50] = torch.nan
    found = greedy(model, ids, 4, layout)
    assert found[:, 0].tolist() == [50] * len(QUESTIONS)
    monkeypatch.setattr(native, "library", lambda: None)
    assert torch.equal(found, greedy(model, ids, 4, layout))
