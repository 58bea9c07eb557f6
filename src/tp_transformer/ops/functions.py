"""Functions of tensors by C kernels, as custom operators of PyTorch.

`packed_attention` computes attention within packed rows, and its gradient, in one call: at batches
of 32 rows, a computation by groups of rows of equal length spends most of its time on starting
small operations. `total_factor` computes the Newton-Schulz iterations of the optimizer Muon, with
half of the operations of PyTorch.
"""

from typing import Any

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids
from tp_transformer.ops import library
from tp_transformer.ops.library import KINDS, AttentionCall, HeadsView, is_plain, runs_as_written


def can_attend(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether the kernel is there and supports these tensors (1, head, position, d_head)."""
    return (
        not dropout
        and query.dtype == key.dtype == value.dtype
        and all(is_plain(states, *KINDS) for states in (query, key, value))
        and runs_as_written()
        and library.load() is not None
    )


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: tuple[Tensor, Tensor], causal: bool
) -> Tensor:
    """Return the fillers of packed rows (equations 2 and 3): (1, head, position, d_head).

    `ends` has the offsets of the rows of queries and of keys.
    """
    check_rows((ends[0].numpy(), ends[1].numpy()), (query.shape[2], key.shape[2]))
    shape, n_keys = query.shape, key.shape[2]
    for states, n_positions in ((query, shape[2]), (key, n_keys), (value, n_keys)):
        expected = (1, shape[1], n_positions, shape[3])
        if states.shape != expected:
            raise ValueError(
                f"the states of packed rows must be {expected}, not {(*states.shape,)}"
            )
    filler: Tensor = _attend(query, key, value, *ends, causal)[0]
    return filler


def check_rows(ends: tuple[Ids, Ids], n_positions: tuple[int, int]) -> None:
    """Raise if rows are not those of so many positions, which the kernel would read."""
    n_queries, n_keys = (len(offsets) - 1 for offsets in ends)
    if n_queries != n_keys:
        raise ValueError(f"{n_queries} rows of queries cannot attend to {n_keys} rows of keys")
    for offsets, count in zip(ends, n_positions, strict=True):
        if offsets[0] or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"the rows of the layout are not those of {count} positions")


@torch.library.custom_op("tp_transformer::packed_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the fillers, and the logarithm of the sum of each softmax in units of the kernel."""
    filler, log_sum = _outputs(query)
    states = _with_contiguous_vectors(query=query, key=key, value=value, filler=filler)
    call_attention(states, log_sum, (query_ends, key_ends), causal=causal)
    return filler, log_sum


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    return _outputs(query)


@torch.library.custom_op("tp_transformer::packed_attention_backward", mutates_args=())
def _attend_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    d_filler: Tensor,
    log_sum: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    d_query, d_key, d_value = map(_like_positions, (query, key, value))
    states = _with_contiguous_vectors(query=query, key=key, value=value, gradient=d_filler)
    states |= {"d_query": d_query, "d_key": d_key, "d_value": d_value}
    call_attention(states, log_sum, (query_ends, key_ends), causal=causal)
    return d_query, d_key, d_value


@_attend_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _like_positions(query), _like_positions(key), _like_positions(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, d_filler: Tensor, _: Tensor) -> tuple[Any, ...]:
    query, key, value, query_ends, key_ends, log_sum = ctx.saved_tensors
    gradients = _attend_backward(
        query, key, value, d_filler, log_sum, query_ends, key_ends, ctx.causal
    )
    return *gradients, None, None, None


_attend.register_autograd(_backward, setup_context=_keep)


def call_attention(
    states: dict[str, Tensor], log_sum: Tensor, ends: tuple[Tensor, Tensor], *, causal: bool
) -> None:
    """Write the fillers of `query`, `key` and `value`, or from a `gradient` theirs.

    States are (1, head, position, d_head), with contiguous vectors, by their names in C.
    """
    query = states["query"]
    call = AttentionCall(
        **{name: HeadsView.of(each) for name, each in states.items()},
        log_sum=log_sum.data_ptr(),
        query_ends=ends[0].data_ptr(),
        key_ends=ends[1].data_ptr(),
        n_rows=len(ends[0]) - 1,
        n_heads=query.shape[1],
        d_head=query.shape[3],
        kind=KINDS[query.dtype],
        causal=causal,
    )
    library.call("attention", call, torch.get_num_threads())


def _with_contiguous_vectors(**states: Tensor) -> dict[str, Tensor]:
    return {name: x if x.stride(-1) == 1 else x.contiguous() for name, x in states.items()}


def _outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    _, n_heads, n_positions, _ = query.shape
    log_sum = query.new_empty(n_heads, n_positions, dtype=torch.float32)
    return _like_positions(query), log_sum


def _like_positions(states: Tensor) -> Tensor:
    """Return an uninitialised tensor like `states`, with the heads of a position side by side."""
    _, n_heads, n_positions, d_head = states.shape
    return states.new_empty(1, n_positions, n_heads, d_head).transpose(1, 2)


def can_iterate(squares: Tensor) -> bool:
    """Whether `total_factor` supports matrices (matrix, row, column)."""
    return (
        is_plain(squares, torch.float32)
        and squares.is_contiguous()
        and squares.shape[1] % 8 == 0
        and runs_as_written()
        and library.load() is not None
    )


@torch.library.custom_op("tp_transformer::total_factor", mutates_args=())
def total_factor(squares: Tensor, coefficients: list[float], n_rounds: int) -> Tensor:
    """Return the product of the factors of all rounds, from the squares x x^T of matrices x.

    A round multiplies x by a + b s + c s^2, where s is the square of x, which changes with it.
    """
    total, numbers = torch.empty_like(squares), torch.tensor(coefficients, device="cpu")
    n_threads = torch.get_num_threads()
    library.call("newton_schulz", *squares.shape[:2], n_rounds, n_threads, numbers, squares, total)
    return total


@total_factor.register_fake
def _(squares: Tensor, coefficients: list[float], n_rounds: int) -> Tensor:
    return torch.empty_like(squares)
