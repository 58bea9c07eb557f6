"""The C kernel computes the same attention as PyTorch does row by row."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from tp_transformer.model.layout import Packed, PackedPattern
from tp_transformer.ops import library
from tp_transformer.ops.functions import _attend, can_attend, packed_attention

pytestmark = [
    pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of tools of torch
]


def fused_parts(n_parts: int, n_heads: int, n_positions: int, d_head: int, dtype) -> list[Tensor]:
    """Queries, keys and values as views of one projection, as attention passes them."""
    projected = torch.randn(1, n_positions, n_parts, n_heads, d_head).to(dtype)
    return [part.transpose(1, 2) for part in projected.unbind(2)]


def attention_of(query, key, value, ends, causal) -> Tensor:
    return packed_attention(query, key, value, tuple(map(torch.from_numpy, ends)), causal)


def outputs(function, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """The fillers, and the gradients of their weighted sum."""
    inputs = [one.detach().requires_grad_() for one in inputs]
    filler = function(*inputs)
    (filler.float() * weight).sum().backward()
    return [filler.detach(), *(one.grad for one in inputs)]


@pytest.mark.parametrize("d_head", [3, 16, 64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fillers_and_gradients_are_those_of_plain_pytorch(d_head, causal, dtype):
    torch.manual_seed(0)
    lengths = np.array([1, 70, 8, 25, 70, 2])
    keys = lengths if causal else np.array([9, 33, 1, 64, 2, 100])
    n_heads, total = 3, int(lengths.sum())
    query = fused_parts(2, n_heads, total, d_head, dtype)[1]
    key, value = fused_parts(3, n_heads, int(keys.sum()), d_head, dtype)[:2]
    assert can_attend(query, key, value, 0.0)
    assert not can_attend(query, key, value, 0.1)
    weight = torch.randn(1, n_heads, total, d_head)
    ends = tuple(np.concatenate([[0], np.cumsum(one)]) for one in (lengths, keys))
    pattern = PackedPattern(Packed(lengths), Packed(keys), causal)
    found = outputs(lambda *one: attention_of(*one, ends, causal), [query, key, value], weight)
    wanted = outputs(
        lambda *states: pattern._by_length(*(each.float() for each in states), 0.0).to(dtype),
        [query, key, value],
        weight,
    )
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_extreme_scores_give_the_softmax_of_torch():
    query = torch.tensor([0.0, 60.0, -60.0, 1e4]).view(1, 1, 4, 1)
    key = torch.tensor([1.0, -1.0, 0.0]).view(1, 1, 3, 1)
    value = torch.tensor([1.0, 2.0, 4.0]).view(1, 1, 3, 1)
    ends = np.array([0, 4]), np.array([0, 3])
    found = attention_of(query, key, value, ends, False)
    torch.testing.assert_close(found, (query @ key.mT).softmax(dim=-1) @ value)


def test_what_is_not_a_number_stays_so():
    query, key, value = (torch.randn(1, 2, 5, 16) for _ in range(3))
    key[0, 1, 3, 7] = torch.nan
    ends = np.array([0, 5]), np.array([0, 5])
    found = attention_of(query, key, value, ends, False)
    assert found[0, 0].isfinite().all()
    assert found[0, 1].isnan().all()


def test_two_threads_compute_the_same_as_one(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    query, key, value = (torch.randn(1, 8, 400, 16) for _ in range(3))
    ends = np.array([0, 100, 200, 300, 400]), np.array([0, 100, 200, 300, 400])
    both = attention_of(query, key, value, ends, False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert torch.equal(both, attention_of(query, key, value, ends, False))


def torch_attention(query, key, value, ends, causal):
    """Each row by itself, in the precision of the inputs."""
    rows = []
    for row in range(len(ends[0]) - 1):
        at, of = (slice(one[row], one[row + 1]) for one in ends)
        own = (query[:, :, at], key[:, :, of], value[:, :, of])
        scores = own[0] @ own[1].mT / query.shape[-1] ** 0.5
        if causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        rows.append(scores.softmax(dim=-1) @ own[2])
    return torch.cat(rows, dim=2)


@pytest.mark.parametrize("trained", [0, 1, 2])
def test_gradients_of_only_one_input(trained):
    inputs = [torch.randn(1, 2, 5, 16) for _ in range(3)]
    ends = (np.array([0, 2, 5]),) * 2
    inputs[trained].requires_grad_()
    attention_of(*inputs, ends, True).sum().backward()  # an expanded gradient
    wanted = inputs[trained].detach().double().requires_grad_()
    others = [one.detach().double() for one in inputs]
    torch_attention(*others[:trained], wanted, *others[trained + 1 :], ends, True).sum().backward()
    torch.testing.assert_close(inputs[trained].grad, wanted.grad.float(), rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused():
    inputs = [torch.randn(1, 2, 5, 16, requires_grad=True) for _ in range(3)]
    filler = attention_of(*inputs, (np.array([0, 5]),) * 2, False)
    (first,) = torch.autograd.grad(filler.square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("ends", "shapes", "message"),
    [
        (([0, 5], [0, 2, 5]), {}, "1 rows of queries cannot attend to 2 rows of keys"),
        (([0, 6], [0, 5]), {}, "not those of 5 positions"),
        (([0, 5], [0, 4]), {}, "not those of 5 positions"),
        (([0, 6, 5], [0, 2, 5]), {}, "not those of 5 positions"),
        (([0, 5], [0, 5]), {2: (1, 2, 5, 8)}, "must be"),
        (([0, 5], [0, 5]), {1: (1, 1, 5, 16)}, "must be"),
        (([0, 5], [0, 5]), {0: (2, 2, 5, 16)}, "must be"),
    ],
)
def test_rows_outside_the_tensors_are_refused(ends, shapes, message):
    inputs = [torch.randn(shapes.get(index, (1, 2, 5, 16))) for index in range(3)]
    with pytest.raises(ValueError, match=message):
        attention_of(*inputs, tuple(map(np.array, ends)), False)


def test_bfloat16_that_is_not_a_number_stays_so():
    query, key, value = (torch.randn(1, 2, 5, 16).bfloat16() for _ in range(3))
    key[0, 1, 3, 7] = torch.nan
    found = attention_of(query, key, value, (np.array([0, 5]),) * 2, False)
    assert found[0, 0].isfinite().all()
    assert found[0, 1].isnan().all()


def test_the_operator_is_one_of_torch():
    query, key, value = (torch.randn(1, 2, 5, 16, requires_grad=True) for _ in range(3))
    for ends, causal in ((torch.tensor([0, 2, 5]), True), (torch.tensor([0, 5]), False)):
        opcheck(_attend, (query, key, value, ends, ends, causal))
