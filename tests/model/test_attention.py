"""Attention against the plain-loop transcription of the paper's equations, and its laws."""

import copy

import pytest
import torch

import reference
from exported import attention_parameters
from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.layout import PaddedPattern, causal_mask

SIZES = [(4, 1), (6, 3), (12, 4)]
PER_HEAD, FEW, FUSED = "sigmoid per head", "dictionary of 7", "dictionary of 3"
OPTIONS = {
    "low-rank": {"rank": 5},
    PER_HEAD: {"per_head": True},
    FEW: {"n_roles": 7},
    FUSED: {"n_roles": 3},  # as many as the heads of `attention_of` have dimensions
}
VARIANTS = [*BINDINGS, PER_HEAD, FEW, FUSED]


def attention_of(kind, variant, d_model=12, n_heads=4):
    options, binding = OPTIONS.get(variant, {}), variant.split()[0]
    config = TransformerConfig(
        d_model=d_model, n_heads=n_heads, binding=binding, binding_options=options
    )
    attention = kind(config).double()
    if binding == "constant":
        torch.nn.init.normal_(attention.binding.role)  # at first it is one
    return attention


def states(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_near(found, expected):
    """A relative error below 1e-9, as the vector norm sees it."""
    assert (found - expected).norm() < 1e-9 * expected.norm()


@pytest.mark.parametrize("binding", VARIANTS)
@pytest.mark.parametrize(("d_model", "n_heads"), SIZES)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_self_attention_equals_the_transcription(binding, d_model, n_heads, length):
    attention = attention_of(SelfAttention, binding, d_model, n_heads)
    state = states(2, length, d_model)
    for mask in (None, causal_mask(length, length, state.device), random_mask(length, length)):
        output = attention(state, PaddedPattern(mask))
        allowed = (torch.ones(length, length) if mask is None else mask).bool().tolist()
        for row in range(2):
            expected = reference.attention(
                attention_parameters(attention),
                list(state[row]),
                list(state[row]),
                allowed,
                n_heads,
                binding.split()[0],
            )
            assert_near(output[row], torch.stack(expected))


@pytest.mark.parametrize("binding", VARIANTS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 6), (5, 1), (4, 7)])
def test_cross_attention_equals_the_transcription(binding, queries, keys):
    attention = attention_of(CrossAttention, binding)
    state, memory = states(3, queries, 12), states(3, keys, 12)
    lengths = [keys, 1, max(1, keys - 2)]
    mask = torch.tensor([[i < length for i in range(keys)] for length in lengths])
    output = attention(state, *attention.remember(memory), PaddedPattern(mask[:, None, None, :]))
    for row, length in enumerate(lengths):
        expected = reference.attention(
            attention_parameters(attention),
            list(state[row]),
            list(memory[row, :length]),
            [[True] * length] * queries,
            4,
            binding.split()[0],
        )
        assert_near(output[row], torch.stack(expected))


@pytest.mark.parametrize("binding", VARIANTS)
def test_gradients_equal_the_transcriptions(binding):
    attention = attention_of(SelfAttention, binding, d_model=6, n_heads=2)
    direction, state = states(5, 6), states(1, 5, 6)
    (
        attention(state, PaddedPattern(causal_mask(5, 5, state.device)))[0] * direction
    ).sum().backward()
    found = attention_gradients(attention)
    del found["W_k.bias"]  # the softmax cancels it: what there is, is rounding
    parameters = {k: v.clone().requires_grad_() for k, v in attention_parameters(attention).items()}
    allowed = torch.ones(5, 5).tril().bool().tolist()
    outputs = reference.attention(
        parameters, list(state[0]), list(state[0]), allowed, 2, binding.split()[0]
    )
    (torch.stack(outputs) * direction).sum().backward()
    for name, gradient in found.items():
        assert_near(gradient, parameters[name].grad)


def attention_gradients(attention):
    """The gradients by the transcription's names, read off a copy that has them for weights."""
    holder = copy.deepcopy(attention)
    holder.load_state_dict({name: p.grad for name, p in attention.named_parameters()})
    return attention_parameters(holder)


def test_maps_write_through_to_the_parameters():
    attention = attention_of(CrossAttention, "hadamard")
    weight, bias = attention.maps()["role"]
    weight.fill_(2.0)
    bias.fill_(3.0)
    assert attention.in_proj.weight[12:].eq(2).all()
    assert attention.in_proj.bias[12:].eq(3).all()
    assert not attention.in_proj.weight[:12].eq(2).any()


def random_mask(queries, keys):
    """A fixed mask with gaps in which every query has a key."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, 0] = True
    return mask
