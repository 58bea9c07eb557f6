"""The C kernel computes the same attention as groups of rows in PyTorch."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tp_transformer.data.layout.fused import can_fuse, fused_attention
from tp_transformer.data.layout.grouped import Groups, grouped_attention
from tp_transformer.foundation import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not compiled")


def fused_parts(n_parts: int, n_heads: int, n_positions: int, d_head: int, dtype) -> list[Tensor]:
    """Queries, keys and values as views of one projection, as attention passes them."""
    projected = torch.randn(1, n_positions, n_parts, n_heads, d_head).to(dtype)
    return [part.transpose(1, 2) for part in projected.unbind(2)]


def outputs(function, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """The fillers, and the gradients of their weighted sum."""
    inputs = [one.detach().requires_grad_() for one in inputs]
    filler = function(*inputs)
    (filler.float() * weight).sum().backward()
    return [filler.detach(), *(one.grad for one in inputs)]


@pytest.mark.parametrize("d_head", [3, 16, 64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fillers_and_gradients_are_those_of_groups(d_head, causal, dtype):
    torch.manual_seed(0)
    lengths = np.array([1, 70, 8, 25, 70, 2])
    keys = lengths if causal else np.array([9, 33, 1, 64, 2, 100])
    n_heads, total = 3, int(lengths.sum())
    query = fused_parts(2, n_heads, total, d_head, dtype)[1]
    key, value = fused_parts(3, n_heads, int(keys.sum()), d_head, dtype)[:2]
    assert can_fuse(query, key, value, 0.0)
    assert not can_fuse(query, key, value, 0.1)
    weight = torch.randn(1, n_heads, total, d_head)
    ends = tuple(np.concatenate([[0], np.cumsum(one)]) for one in (lengths, keys))
    groups = Groups.of(lengths, lengths if causal else keys, n_heads, causal)
    found = outputs(lambda *one: fused_attention(*one, ends, causal), [query, key, value], weight)
    wanted = outputs(lambda *one: grouped_attention(*one, groups, 0.0), [query, key, value], weight)
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
    found = fused_attention(query, key, value, ends, False)
    torch.testing.assert_close(found, (query @ key.mT).softmax(dim=-1) @ value)


def test_what_is_not_a_number_stays_so():
    query, key, value = (torch.randn(1, 2, 5, 16) for _ in range(3))
    key[0, 1, 3, 7] = torch.nan
    ends = np.array([0, 5]), np.array([0, 5])
    found = fused_attention(query, key, value, ends, False)
    assert found[0, 0].isfinite().all()
    assert found[0, 1].isnan().all()


def test_two_threads_compute_the_same_as_one(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    query, key, value = (torch.randn(1, 8, 400, 16) for _ in range(3))
    ends = np.array([0, 100, 200, 300, 400]), np.array([0, 100, 200, 300, 400])
    both = fused_attention(query, key, value, ends, False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert torch.equal(both, fused_attention(query, key, value, ends, False))
