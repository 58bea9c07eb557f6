"""Attention against the plain-loop transcription of the paper's equations, and its laws."""

import copy

import pytest
import torch

import reference
from exported import attention_parameters
from tp_transformer.errors import SettingsError
from tp_transformer.model.attention import CrossAttention, SelfAttention, attention_weights
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.layout import PaddedPattern, causal_mask
from tp_transformer.model.search import KeyValueCache
from tp_transformer.model.trace import trace

SIZES = [(4, 1), (6, 3), (12, 4)]
PER_HEAD, FEW, FUSED = "sigmoid per head", "dictionary of 7", "dictionary of 3"
OPTIONS = {
    "low-rank": {"rank": 5},
    PER_HEAD: {"per_head": True},
    FEW: {"n_roles": 7},
    FUSED: {"n_roles": 3},  # as many as the heads of `attention_of` have dimensions
}
PRODUCTS = ["hadamard", "tensor", "low-rank", "convolution"]
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
def test_gradients_are_those_of_the_function(binding):
    attention = attention_of(SelfAttention, binding, d_model=4, n_heads=2)
    pattern = PaddedPattern(causal_mask(3, 3, torch.device("cpu")))
    parameters = [p.detach().requires_grad_() for p in attention.parameters()]
    names = [name for name, _ in attention.named_parameters()]

    def output(state, *values):
        return torch.func.functional_call(
            attention, dict(zip(names, values, strict=True)), (state, pattern)
        )

    state = states(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(output, (state, *parameters))


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


@pytest.mark.parametrize("binding", ["none", "constant", *PRODUCTS])
def test_output_is_quadratic_in_its_input_along_fixed_weights(binding):
    """Section 2.1: without biases, scaling the input by s scales a TP output by s squared."""
    attention = attention_of(SelfAttention, binding)
    for name, parameter in attention.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    state = states(2, 5, 12)
    with trace(attention, "weights") as recorded:
        output = attention(state, PaddedPattern())
        weights = recorded["weights"]
    with trace(attention, edit={"weights": lambda _: weights}):
        scaled = attention(3.0 * state, PaddedPattern())
    degree = 2 if binding in PRODUCTS else 1
    assert_near(scaled, 3.0**degree * output)


def test_tensor_binding_with_a_diagonal_output_map_equals_hadamard():
    tensor, hadamard = (
        attention_of(SelfAttention, "tensor"),
        attention_of(SelfAttention, "hadamard"),
    )
    d_head, n_heads = 3, 4
    with torch.no_grad():
        tensor.in_proj.load_state_dict(hadamard.in_proj.state_dict())
        tensor.out_proj.bias.copy_(hadamard.out_proj.bias)
        blocks = torch.zeros(12, n_heads, d_head, d_head, dtype=torch.float64)
        blocks.diagonal(dim1=2, dim2=3).copy_(hadamard.out_proj.weight.view(12, n_heads, d_head))
        tensor.out_proj.weight.copy_(blocks.flatten(1))
    state = states(2, 6, 12)
    assert_near(tensor(state, PaddedPattern()), hadamard(state, PaddedPattern()))


@pytest.mark.parametrize("binding", VARIANTS)
def test_cached_attention_equals_attention_at_once(binding):
    attention = attention_of(SelfAttention, binding)
    state = states(2, 7, 12)
    at_once = attention(state, PaddedPattern(causal_mask(7, 7, state.device)))
    cache = KeyValueCache(capacity=7)
    with torch.no_grad():
        pieces = [attention(state[:, :3], PaddedPattern(causal_mask(3, 3, state.device)), cache)]
        pieces += [attention(state[:, t : t + 1], PaddedPattern(), cache) for t in range(3, 5)]
        pieces += [attention(state[:, 5:], PaddedPattern(causal_mask(2, 7, state.device)), cache)]
    assert_near(torch.cat(pieces, dim=1), at_once)
    assert cache.length == 7


def test_weights_are_those_of_the_definition():
    query, key = states(1, 2, 3, 4), states(1, 2, 5, 4)
    weights = attention_weights(query, key, random_mask(3, 5))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 3, dtype=torch.float64))
    assert (weights[..., ~random_mask(3, 5)] == 0).all()
    plain = attention_weights(query, key, None)
    expected = torch.exp(query[0, 1, 2] @ key[0, 1, 4] / 2)
    total = sum(torch.exp(query[0, 1, 2] @ key[0, 1, i] / 2) for i in range(5))
    torch.testing.assert_close(plain[0, 1, 2, 4], expected / total)


def test_every_map_is_drawn_by_itself():
    attention = SelfAttention(TransformerConfig(d_model=64, n_heads=4))
    attention.initialise()
    bound = (6 / 128) ** 0.5  # Xavier-uniform for 64 x 64, not for the fused 256 x 64
    for weight, _ in attention.maps().values():
        assert weight.shape == (64, 64)
        assert bound * 0.97 < weight.abs().max().item() <= bound


def test_maps_write_through_to_the_parameters():
    attention = attention_of(CrossAttention, "hadamard")
    weight, bias = attention.maps()["role"]
    weight.fill_(2.0)
    bias.fill_(3.0)
    assert attention.in_proj.weight[12:].eq(2).all()
    assert attention.in_proj.bias[12:].eq(3).all()
    assert not attention.in_proj.weight[:12].eq(2).any()


def test_dropout_acts_in_training_only():
    attention = SelfAttention(TransformerConfig(d_model=8, n_heads=2, dropout=0.5))
    state = torch.randn(1, 6, 8)
    assert not torch.equal(attention(state, PaddedPattern()), attention(state, PaddedPattern()))
    attention.eval()
    assert torch.equal(attention(state, PaddedPattern()), attention(state, PaddedPattern()))


def test_refuses_heads_that_do_not_divide():
    with pytest.raises(SettingsError, match="5 does not divide 12"):
        attention_of(SelfAttention, "none", n_heads=5)


def random_mask(queries, keys):
    """A fixed mask with gaps in which every query has a key."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, 0] = True
    return mask
