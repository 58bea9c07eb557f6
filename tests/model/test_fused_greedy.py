"""Searches by the C kernels find the answers of the search with the cells."""

import weakref

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.layout.packed import Packed
from tp_transformer.data.layout.padded import Padded
from tp_transformer.data.vocabulary import Ragged
from tp_transformer.foundation import native
from tp_transformer.model import solver
from tp_transformer.model.decoding import greedy
from tp_transformer.model.fused_search import FusedSearch
from tp_transformer.model.fused_state import fused_state
from tp_transformer.model.solver import Solver

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
    ids, layout = lay_out(model, questions[:n_questions])
    for max_length in (1, 8, 23, 40):
        found = model.fused_search().greedy(encoded, max_length)
        with monkeypatch.context() as without:
            without.setattr(native, "library", lambda: None)
            assert torch.equal(found, greedy(model, ids, max_length, layout))
    assert "decoder_step" not in called
    assert called.count("decoder_greedy") >= 4
    if n_questions == 13:
        lengths = (found != model.vocabulary.pad).sum(dim=1)
        assert lengths.min() < lengths.max()


REPLACEMENTS = {
    "encode": lambda model: lambda source, layout: model.encode(source, layout),
    "begin": lambda model: lambda memory, max_length: model.begin(memory, max_length),
    "step": lambda model: lambda previous, state: -model.step(previous, state),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_model_with_another_method_is_not_searched_by_kernels_alone(called, name):
    """Neither if an instance has it, nor if a class has it."""
    model, wanted = model_of(), model_of()
    replacement = REPLACEMENTS[name](wanted)
    setattr(model, name, replacement)
    kind = type("Own", (type(wanted),), {name: lambda self, *given: replacement(*given)})
    subclass = model_of()
    subclass.__class__ = kind
    answers = wanted.solve(QUESTIONS, max_length=5)
    found = Solver(wanted).answers(QUESTIONS, max_length=5, beam=2)
    assert "decoder_greedy" in called
    called.clear()
    for other in (model, subclass):
        assert (other.solve(QUESTIONS, max_length=5) == answers) == (name != "step")
        others = Solver(other).answers(QUESTIONS, max_length=5, beam=2)
        assert (others == found) == (name != "step")
    assert "decoder_greedy" not in called


def test_a_model_in_training_mode_is_searched_by_kernels_alone(called):
    model = model_of().train()
    answers = model.solve(QUESTIONS, max_length=5)
    assert "decoder_greedy" in called
    assert all(part.training for part in model.modules())
    assert model.eval().solve(QUESTIONS, max_length=5) == answers


MANY = [str(10**row) for row in range(19)]


@pytest.mark.parametrize("change", ["in place", "data"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("at_once", [16, 128])
@torch.no_grad()
def test_a_change_between_searches_of_many_questions_has_its_effect(
    monkeypatch, change, stack, at_once
):
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", at_once)
    model = model_of()
    before = model.solve(MANY, max_length=5)
    weight = getattr(model, stack)[1].feed_forward.expand.weight
    if change == "in place":
        weight.mul_(-9)
    else:
        weight.data = -9 * weight.data
    after = model.solve(MANY, max_length=5)
    assert after != before
    monkeypatch.setattr(native, "library", lambda: None)
    assert model.solve(MANY, max_length=5) == after


# For one group, the decoder is packed; for several, the encoder and the decoder are, once for all.
@pytest.mark.parametrize(("at_once", "n_stacks"), [(128, 1), (16, 2), (4, 2)])
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_many_questions_have_the_answers_of_few(
    monkeypatch, called, precision, n_threads, at_once, n_stacks
):
    model = model_of().in_precision(precision)
    few = [model.solve([question], max_length=5)[0] for question in MANY]
    best = [answers[0].text for answers in Solver(model).answers(MANY, max_length=5, beam=1)]
    assert best == few
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    for beam in (1, 2):
        called.clear()
        found = model.solve(MANY, max_length=5, beam=beam)
        assert beam > 1 or found == few
        assert called.count("pack_layers") == (n_stacks if precision == "float32" else 0)
        assert called.count("pack_heads") == (precision == "float32")


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("fields", [{}, {"d_model": 40, "n_heads": 5, "d_ff": 72}], ids=str)
def test_shared_panels_change_no_bit_of_a_probability(monkeypatch, called, fields, beam):
    model = model_of(**fields)
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", 24)
    questions = [f"What is {number} + {number**3}?" for number in range(60)]
    found = Solver(model).answers(questions, max_length=5, beam=beam)
    assert called.count("pack_layers") == 2
    monkeypatch.setattr(FusedSearch, "pack", lambda search: None)
    assert Solver(model).answers(questions, max_length=5, beam=beam) == found


@pytest.mark.parametrize("at_once", [16, 128])
def test_panels_are_freed_after_a_search(monkeypatch, at_once):
    model, panels = model_of(), []
    call = native.call

    def call_and_note(name, *arguments):
        if name.startswith("pack_"):
            panels.append(weakref.ref(arguments[-1]))
        call(name, *arguments)

    monkeypatch.setattr(native, "call", call_and_note)
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", at_once)
    for beam in (1, 2):
        panels.clear()
        model.solve(MANY, max_length=5, beam=beam)
        assert panels
        assert not any(panel() is not None for panel in panels)


@pytest.mark.parametrize("beam", [1, 2])
def test_a_model_with_a_hook_is_not_searched_by_kernels_alone(monkeypatch, called, beam):
    """Neither are several groups, in which the hook sees each question."""
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", 2)
    model, seen = model_of(), []
    wanted = model.solve(QUESTIONS, max_length=5, beam=beam)
    called.clear()
    model.encoder[0].register_forward_hook(lambda _, given, output: seen.append(given))
    assert model.solve(QUESTIONS, max_length=5, beam=beam) == wanted
    assert "decoder_greedy" not in called
    assert "pack_layers" not in called
    assert len(seen) == -(-len(QUESTIONS) * beam // 2)


def test_kernels_search_packed_rows_only():
    model = model_of()
    ids = torch.tensor([[3, 4, 5], [3, 4, model.vocabulary.pad]])
    with torch.no_grad():
        search = model.fused_search()
    for layout in (None, Padded.of(ids, model.vocabulary.pad)):
        with pytest.raises(ValueError, match="packed rows"):
            search.encode(ids, layout)


def test_the_default_device_changes_nothing():
    model = model_of()
    answers = model.solve(MANY, max_length=5)
    with torch.device("meta"):
        assert model.solve(MANY, max_length=5) == answers


@torch.no_grad()
def test_rows_must_be_those_of_the_ids():
    model = model_of()
    encoded = model.vocabulary.encode(QUESTIONS)
    with pytest.raises(ValueError, match="rows from 1 to"):
        model.fused_search().greedy(Ragged(encoded.ids, encoded.offsets + 1), 5)
    short = Ragged(encoded.ids.astype(np.int32), encoded.offsets)
    wanted = model.fused_search().greedy(encoded, 5)
    assert torch.equal(model.fused_search().greedy(short, 5), wanted)


def test_a_traced_model_is_not_searched_by_kernels_alone(called):
    model = model_of()
    with model.trace("decoder.embedding") as trace:
        model.solve(QUESTIONS, max_length=5)
    assert "decoder_greedy" not in called
    assert trace["decoder.embedding"].shape[:2] == (3, 5)


@torch.no_grad()
def test_the_largest_logit_is_that_of_torch(monkeypatch):
    """Of equal logits the first, and NaN before all others."""
    model = model_of()
    encoded = model.vocabulary.encode(QUESTIONS)
    ids, layout = Packed.lay_out(encoded, model.vocabulary.pad)
    weight = model.embedding.symbols.weight
    weight[40:] = weight[10]
    assert model.fused_search().greedy(encoded, 4).max() < 40
    weight[50] = torch.nan
    found = model.fused_search().greedy(encoded, 4)
    assert found[:, 0].tolist() == [50] * len(QUESTIONS)
    monkeypatch.setattr(native, "library", lambda: None)
    assert torch.equal(found, greedy(model, ids, 4, layout))


SIZES = [
    *({}, {"d_model": 40, "n_heads": 5, "d_ff": 72}, {"d_ff": 1032}, {"binding": "none"}),
    {"d_model": 576, "n_layers": 1},  # more inputs than a panel has
]


@pytest.mark.parametrize("fields", SIZES, ids=str)
@pytest.mark.parametrize("n_threads", [1, 2])
@torch.no_grad()
def test_the_encoder_of_many_questions_is_that_of_each(monkeypatch, called, fields, n_threads):
    """A thread has several blocks of positions, for which weights are packed into panels once.

    They are packed for each layer, or before, and then the kernel does not read them again.
    """
    model = model_of(**fields)
    questions = [f"What is {number} + {number**3}?" for number in range(40)]
    alone = [lay_out(model, [question]) for question in questions]
    wanted = torch.cat([model.encode(*given).state for given in alone], dim=1)
    assert wanted.shape[1] > 2 * 240  # positions of a block
    assert called.count("cells_forward") == len(questions)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    assert torch.equal(model.encode(*lay_out(model, questions)).state, wanted)
    search = model.fused_search()
    search.pack()
    for cell in model.encoder:
        for layer in (cell.self_attention.in_proj, cell.feed_forward.contract):
            layer.weight.fill_(torch.nan)
    assert torch.equal(search.encode(*lay_out(model, questions))[0], wanted)


def lay_out(model, questions):
    return Packed.lay_out(model.vocabulary.encode(questions), model.vocabulary.pad)


@pytest.mark.parametrize("fields", SIZES, ids=str)
@torch.no_grad()
def test_weights_in_panels_change_no_bit_of_a_step(fields):
    """Of 15 rows, for which `begin` packs nothing, also with outputs that do not fill a panel."""
    model = model_of(**fields)
    ids, layout = lay_out(model, QUESTIONS * 5)
    memory = model.encode(ids, layout)
    wanted = model.begin(memory, 5)
    known = model._known("decoder", model.decoder_cells).with_panels()
    found = fused_state(model.embedding, known, memory.state, layout, 5)
    for step in range(5):
        previous = 3 + (7 * torch.arange(len(layout)) + step) % 60
        assert torch.equal(found.step(previous), wanted.step(previous))
