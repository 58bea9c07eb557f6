"""Decoding steps by a C kernel, which computes the same as the cells of the decoder.

A step of a single question consists of hundreds of small operations, whose start takes longer than
their arithmetic; the kernel computes all layers in one call. It is used for the decoder of this
package as it is, in float32 on a CPU. A subclass, a hook, a trace or a replaced method makes
`fused_state` return None, and the model then runs its cells.
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import Packed
from tp_transformer.foundation import native
from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.bare import is_observed
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.cache import FIRST_ROOM
from tp_transformer.model.layers import DecoderCell, Embedding, FeedForward

# The modules that the kernel knows; a subclass may compute something else.
KNOWN = (
    *(Embedding, DecoderCell, SelfAttention, CrossAttention, FeedForward),
    *(HadamardBinding, NoBinding, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout),
)
WIDTH = 8  # floats of a vector of the kernel


class FusedState:
    """The state of the decoder between steps of the kernel."""

    def __init__(
        self,
        embedding: Embedding,
        cells: Sequence[DecoderCell],
        memory: list[tuple[Tensor, Tensor]],
        layout: Layout,
        max_length: int,
    ) -> None:
        attention, (key, _) = cells[0].self_attention, memory[0]
        self._weights = list(_weights(embedding, cells))  # keeps their memory
        self._weight_addresses = _addresses(self._weights)
        self._memory = [tensor for pair in memory for tensor in pair]
        self._memory_addresses = _addresses(self._memory)
        lengths = torch.from_numpy(layout.lengths)
        rows = torch.arange(len(layout))
        self._starts = lengths.cumsum(0) - lengths if _is_packed(layout) else rows * layout.longest
        self._lengths = lengths
        n_heads, d_head = attention.n_heads, attention.binding.d_head
        self._cache = key.new_empty(len(layout), 0, len(cells), 2, n_heads * d_head)
        self._position, self._max_length = 0, max_length
        binds = isinstance(attention.binding, HadamardBinding)
        d_ff = cells[0].feed_forward.expand.out_features
        self._n_vocab = embedding.symbols.num_embeddings
        self._sizes = [len(cells), n_heads, d_head, d_ff, self._n_vocab]
        self._ends = [int(binds), key.stride(1), key.stride(2), torch.get_num_threads()]
        self._epsilon = torch.tensor([cells[0].output_norm.eps], dtype=torch.float32)

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows, and these questions or all of them."""
        self._cache = self._cache.index_select(0, rows)
        if questions is not None:
            self._starts, self._lengths = self._starts[questions], self._lengths[questions]

    def step(self, previous: Tensor) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        if previous.shape != self._cache.shape[:1]:
            raise ValueError(f"the state has {len(self._cache)} rows, not {len(previous)}")
        room = self._cache.shape[1]
        if self._position == room:
            room = min(self._max_length, max(FIRST_ROOM, 2 * room))
            if self._position == room:
                raise ValueError(f"the cache has {room} positions")
            larger = self._cache.new_empty(len(self._cache), room, *self._cache.shape[2:])
            larger[:, : self._position] = self._cache
            self._cache = larger
        logits = self._cache.new_empty(len(previous), self._n_vocab)
        sizes = [len(previous), len(self._lengths), *self._sizes, self._position, room, *self._ends]
        native.call(
            "decoder_step",
            native.integers(sizes),
            self._epsilon,
            self._weight_addresses,
            self._memory_addresses,
            self._starts,
            self._lengths,
            self._cache,
            previous.to(torch.int64).contiguous(),
            logits,
        )
        self._position += 1
        return logits


def fused_state(
    embedding: Embedding,
    cells: Sequence[DecoderCell],
    memory: list[tuple[Tensor, Tensor]],
    layout: Layout,
    max_length: int,
) -> FusedState | None:
    """Return the state before the first step, or None if the kernel does not support the decoder.

    `memory` has the keys and values of the source, (batch, head, source, d_head), in `layout`.
    """
    if native.library() is None or not cells:
        return None
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    if not all(_is_supported(module) for module in (embedding, *cells)):
        return None
    if not _has_vectors(memory, layout):
        return None
    return FusedState(embedding, cells, memory, layout, max_length)


def _is_supported(module: nn.Module) -> bool:
    """Whether a module and all its parts compute what the kernel computes."""
    if is_observed(module):
        return False
    for part in module.modules():
        if type(part) not in KNOWN or part.training or _has_replaced_methods(part):
            return False
        if isinstance(part, nn.Linear) and (part.in_features % WIDTH or part.bias is None):
            return False
        if isinstance(part, SelfAttention) and part.binding.d_head % WIDTH:
            return False
        if isinstance(part, nn.LayerNorm) and not part.elementwise_affine:
            return False
    return all(
        parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and parameter.is_contiguous()
        for parameter in module.parameters()
    )


def _has_replaced_methods(module: nn.Module) -> bool:
    """Whether an attribute of an instance hides a method of its class."""
    kind = type(module)
    return any(callable(getattr(kind, name, None)) for name in vars(module))


def _has_vectors(memory: list[tuple[Tensor, Tensor]], layout: Layout) -> bool:
    """Whether all keys and values have contiguous vectors, the same strides, and rows in order."""
    key = memory[0][0]
    same = all(
        tensor.stride() == key.stride() and tensor.dtype == torch.float32
        for pair in memory
        for tensor in pair
    )
    in_order = len(key) == 1 or key.stride(0) == layout.longest * key.stride(2)
    return same and in_order and key.stride(3) == 1


def _is_packed(layout: Layout) -> bool:
    return isinstance(layout, Packed)


def _weights(embedding: Embedding, cells: Sequence[DecoderCell]) -> Iterator[Tensor | None]:
    """Yield the weights in the order in which the kernel reads them."""
    yield from _affine(embedding.role_proj)
    yield embedding.symbols.weight
    yield embedding.positions_like(embedding.symbols.weight)
    for cell in cells:
        inner, cross, forward = cell.self_attention, cell.cross_attention, cell.feed_forward
        norms = (cell.self_attention_norm, cell.cross_attention_norm, cell.feed_forward_norm)
        for layer in (
            *(*norms, cell.output_norm),
            *(inner.in_proj, inner.out_proj, cross.in_proj, cross.out_proj),
            *(forward.expand, forward.contract),
        ):
            yield from _affine(layer)


def _affine(layer: nn.Linear | nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if layer is None else (layer.weight, layer.bias)


def _addresses(tensors: Sequence[Tensor | None]) -> Any:
    given = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(given))(*cast(list[Any], given))
