"""Attention within packed rows by a C kernel, which computes the same as `grouped`.

All rows are computed in one call, in float32, without gathering them into groups: at batches of 32
rows this is a fraction of the time of `grouped`, most of which are starts of small operations.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids
from tp_transformer.foundation import native

KINDS = {torch.float32: 0, torch.bfloat16: 1}


def can_fuse(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether the kernel is there and supports these tensors (1, head, position, d_head)."""
    return (
        not dropout
        and query.dtype in KINDS
        and query.dtype == key.dtype == value.dtype
        and all(type(states) is Tensor and states.is_cpu for states in (query, key, value))
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and native.library() is not None
    )


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: tuple[Ids, Ids], causal: bool
) -> Tensor:
    """Return the fillers of packed rows (equations 2 and 3): (1, head, position, d_head).

    `ends` has the offsets of the rows of queries and of keys.
    """
    check_shapes((query, key, value), ends)
    return _Fused.apply(query, key, value, ends, causal)  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    """Equations 2 and 3 in float32, with their gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, ends: tuple[Ids, Ids], causal: bool
    ) -> Tensor:
        states = [_with_whole_vectors(one) for one in (query, key, value)]
        filler = _like_positions(query)
        log_sum = attention_forward(states, filler, ends, causal)
        ctx.save_for_backward(*states, log_sum)
        ctx.ends, ctx.causal = ends, causal
        return filler

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_filler: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, log_sum = ctx.saved_tensors
        results = [_like_positions(one) for one in (query, key, value)]
        gradient = _with_whole_vectors(d_filler)
        attention_backward((query, key, value), gradient, log_sum, results, ctx.ends, ctx.causal)
        return *results, None, None


def attention_forward(
    states: Sequence[Tensor], filler: Tensor, ends: tuple[Ids, Ids], causal: bool
) -> Tensor:
    """Write fillers; return the logarithm of the sum of each softmax, in units of the kernel.

    `states` are query, key and value. All are (1, head, position, d_head) with contiguous vectors;
    the heads of a filler are side by side.
    """
    log_sum = torch.empty(filler.shape[1:3])
    native.call(
        "attention_forward",
        _sizes(filler, ends, causal),
        _strides(*states),
        *map(_offsets, ends),
        *states,
        filler,
        log_sum,
    )
    return log_sum


def attention_backward(
    states: Sequence[Tensor],
    d_filler: Tensor,
    log_sum: Tensor,
    results: Sequence[Tensor],
    ends: tuple[Ids, Ids],
    causal: bool,
) -> None:
    """Write the gradients of query, key and value, which are `states`, to `results`."""
    native.call(
        "attention_backward",
        _sizes(states[0], ends, causal),
        _strides(*states, d_filler, *results),
        *map(_offsets, ends),
        *states,
        d_filler,
        log_sum,
        *results,
    )


def check_shapes(states: Sequence[Tensor], ends: tuple[Ids, Ids]) -> None:
    """Raise if the kernel would read or write outside of query, key and value."""
    query, key, value = states
    _, n_heads, n_queries, d_head = query.shape
    n_rows = [len(one) - 1 for one in ends]
    if n_rows[0] != n_rows[1]:
        raise ValueError(f"{n_rows[0]} rows of queries cannot attend to {n_rows[1]} rows of keys")
    for one, n_positions, offsets in (
        (query, n_queries, ends[0]),
        (key, key.shape[2], ends[1]),
        (value, key.shape[2], ends[1]),
    ):
        wanted = (1, n_heads, n_positions, d_head)
        if one.shape != wanted:
            raise ValueError(f"the states of packed rows must be {wanted}, not {(*one.shape,)}")
        if offsets[0] or offsets[-1] != n_positions or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"the rows of the layout are not those of {n_positions} positions")


def _with_whole_vectors(states: Tensor) -> Tensor:
    """Return states (1, head, position, d_head) whose vectors are contiguous."""
    return states if states.stride(-1) == 1 else states.contiguous()


def _like_positions(states: Tensor) -> Tensor:
    """Return an uninitialised tensor like `states`, with the heads of a position side by side."""
    _, n_heads, n_positions, d_head = states.shape
    return states.new_empty(1, n_positions, n_heads, d_head).transpose(1, 2)


def _sizes(query: Tensor, ends: tuple[Ids, Ids], causal: bool) -> Any:
    _, n_heads, _, d_head = query.shape
    n_rows, n_threads = len(ends[0]) - 1, torch.get_num_threads()
    return native.integers([n_rows, n_heads, d_head, KINDS[query.dtype], causal, n_threads])


def _offsets(ends: Ids) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ends, np.int64))


def _strides(*states: Tensor) -> Any:
    return native.integers([stride for one in states for stride in one.stride()[1:3]])
