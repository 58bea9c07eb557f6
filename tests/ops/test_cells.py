"""Training by C kernels computes the same as the cells, and only for the known ones."""

import pytest
import torch
from torch import nn
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import tp_transformer as tpt
from tp_transformer.model.binding import NoBinding
from tp_transformer.model.layout import Packed, Padded
from tp_transformer.ops import library
from tp_transformer.ops.cells import _layers, run_cells, trained_cells

pytestmark = [
    pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of tools of torch
]

QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "Sort 3, -1, 7.", "Solve 2*x = 4 for x.", "1"]
ANSWERS = ["7", "True", "-1, 3, 7", "2", "1"]


def model_of(**fields):
    """A model in training whose biases and normalisations are not neutral."""
    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", **fields).train()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def batch_of(model, repeats=1, layout=Packed):
    encoded = [model.vocabulary.encode(one * repeats) for one in (QUESTIONS, ANSWERS)]
    return tpt.Batch.from_ragged(*encoded, model.vocabulary.pad, layout)


def gradients(model, batch, precision="float32"):
    """The loss, and the gradients of all parameters in one vector."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = model.loss(batch).total
    loss.backward()
    return loss.detach(), torch.cat([one.grad.flatten() for one in model.parameters()])


def distance(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    "fields", [{}, {"binding": "none", "embedding_binding": False}, {"d_ff": 61}, {"d_ff": 5}]
)
def test_gradients_are_those_of_the_cells(without_kernels, called, fields):
    model = model_of(**fields)
    batch = batch_of(model)
    loss, found = gradients(model, batch)
    assert called.count("normalise_backward") == 7 * model.config.n_layers
    with without_kernels():
        wanted_loss, wanted = gradients(model, batch)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-5)
    assert distance(found, wanted) < 1e-5


@pytest.mark.parametrize("fields", [{}, {"n_heads": 2}, {"binding": "none"}, {"d_ff": 620}])
def test_bfloat16_is_as_close_to_float32_as_autocast(without_kernels, called, fields):
    model = model_of(**fields)
    batch = batch_of(model, repeats=3)
    with without_kernels():
        _, wanted = gradients(model, batch)
        _, rounded = gradients(model, batch, "bfloat16")
    assert not called
    _, found = gradients(model, batch, "bfloat16")
    assert "normalise_backward" in called
    assert distance(found, wanted) < 1.3 * distance(rounded, wanted) < 0.1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_is_repeatable_and_threads_change_only_roundings(monkeypatch, precision):
    model = model_of()
    batch = batch_of(model, repeats=60)
    _, wanted = gradients(model, batch, precision)
    assert torch.equal(gradients(model, batch, precision)[1], wanted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert distance(gradients(model, batch, precision)[1], wanted) < 1e-5


def test_a_batch_may_be_empty_and_a_graph_may_be_used_twice():
    model = model_of()
    encode, pad = model.vocabulary.encode, model.vocabulary.pad
    empty = tpt.Batch.from_ragged(encode([]), encode([]), pad, Packed)
    assert not gradients(model, empty)[1].any()
    loss = model.loss(batch_of(model)).total
    weight = model.decoder[0].cross_attention.memory_proj.weight
    first, second = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_frozen_weights_and_states_without_a_gradient():
    model = model_of()
    batch = batch_of(model)
    _, wanted = gradients(model, batch)
    model.embedding.requires_grad_(requires_grad=False)
    model.encoder.requires_grad_(requires_grad=False)
    model.zero_grad()
    model.loss(batch).total.backward()
    found = [one.grad for one in model.parameters()]
    wanted = wanted.split([one.numel() for one in model.parameters()])
    for one, other, parameter in zip(found, wanted, model.parameters(), strict=True):
        assert (one is None) != parameter.requires_grad
        assert one is None or torch.equal(one.flatten(), other)


def test_what_is_not_a_number_reaches_the_loss_and_the_gradient():
    model = model_of()
    with torch.no_grad():
        model.encoder[0].feed_forward.expand.bias[3] = torch.nan
    loss, found = gradients(model, batch_of(model))
    assert loss.isnan()
    assert found.isnan().any()


class _Linear(nn.Linear):
    pass


CHANGES = {
    "a hook": lambda cell: cell.register_forward_hook(lambda *inputs: None),
    "a hook of the gradient": lambda cell: cell.feed_forward.register_full_backward_hook(
        lambda *inputs: None
    ),
    "a hook before the gradient": lambda cell: cell.register_full_backward_pre_hook(
        lambda *inputs: None
    ),
    "a subclass": lambda cell: setattr(cell.feed_forward.expand, "__class__", _Linear),
    "dropout": lambda cell: setattr(cell.dropout, "p", 0.1),
    "dropout of weights": lambda cell: setattr(cell.self_attention, "dropout", 0.1),
    "a binding of cross-attention": lambda cell: setattr(
        getattr(cell, "cross_attention", cell.self_attention), "binding", NoBinding(4, 16)
    ),
    "heads": lambda cell: setattr(
        getattr(cell, "cross_attention", cell.self_attention), "n_heads", 2
    ),
    "bound values": lambda cell: setattr(cell.self_attention.binding, "binds_values", True),
    "a type": lambda cell: cell.double(),
}


def inputs_of(model, stack, batch):
    """What `trained_cells` reads for a stack of cells, with random states."""
    d_model = model.config.d_model
    state, target = (
        torch.randn(1, layout.offsets[-1], d_model)
        for layout in (batch.source_layout, batch.target_layout)
    )
    if stack == "encoder":
        return [list(model.encoder), state, batch.source_layout]
    return [list(model.decoder), target, batch.target_layout, state, batch.source_layout]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_model_changes_is_not_fused(change, stack):
    model = model_of()
    given = inputs_of(model, stack, batch_of(model))
    assert trained_cells(*given) is not None
    CHANGES[change](given[0][1])
    assert trained_cells(*given) is None


def test_other_modes_and_layouts_are_not_fused():
    model = model_of()
    batch = batch_of(model)
    given = inputs_of(model, "encoder", batch)
    cells, state, layout = given
    with torch.no_grad():
        assert trained_cells(*given) is None
    with torch.autocast("cpu", torch.float16):
        assert trained_cells(*given) is None
    with FlopCounterMode(display=False):
        assert trained_cells(*given) is None
    assert torch.func.jvp(lambda one: trained_cells(cells, one, layout) or one, (state,), (state,))
    memory = trained_cells(*given)
    for other in (state.double(), state[:, 1:], state.transpose(0, 1)):
        assert trained_cells(cells, other, layout) is None
    assert trained_cells(cells, state, batch_of(model, layout=Padded).source_layout) is None
    model.decoder[0].cross_attention.memory_proj = nn.Linear(model.config.d_model, 8)
    target = torch.randn(1, batch.target_input.shape[1], model.config.d_model)
    layouts = batch.target_layout, memory, batch.source_layout
    assert trained_cells(list(model.decoder), target, *layouts) is None


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("is_low", [False, True])
@pytest.mark.parametrize("binding", ["hadamard", "none"])
def test_the_operator_is_one_of_torch(stack, is_low, binding):
    model = model_of(d_model=16, n_heads=2, d_ff=24, binding=binding)
    cells = list(getattr(model, stack))
    weights = [each for layer in _layers(cells) for each in (layer.weight, layer.bias)]
    state, memory = (torch.randn(1, n, 16, requires_grad=True) for n in (5, 7))
    ends, memory_ends, padding = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 7]), [3, 2]
    if stack == "encoder":
        memory = memory_ends = None
    opcheck(
        run_cells,
        (state, memory, weights, ends, memory_ends, 2, binding != "none", is_low, padding),
    )


def test_rows_of_questions_and_answers_must_be_the_same():
    model = model_of()
    batch, fewer = batch_of(model), model.vocabulary.encode(QUESTIONS[:2])
    memory = model.encode(*Packed.lay_out(fewer, model.vocabulary.pad))
    with pytest.raises(ValueError, match="5 rows of queries cannot attend to 2 rows"):
        model.decode(batch.target_input, memory, batch.target_layout)
