"""The cells of a Transformer by C kernels, which compute the same.

A decoding step of a single question consists of hundreds of small operations, whose start takes
longer than their arithmetic; a kernel computes all layers in one call. Another kernel computes all
cells of the encoder, or of the decoder for known answers, on packed rows. Kernels are used for
inference in float32 on a CPU, with the cells of this package as they are. A subclass, a hook, a
trace, a replaced method (of an instance or, after the import of this module, of a class) or layers
of other sizes make the functions here return None, and the model then runs its cells.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import Packed, PackedPattern
from tp_transformer.data.layout.padded import Padded, PaddedPattern
from tp_transformer.foundation import native
from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.cache import FIRST_ROOM, KeyValueCache
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.trace import Traced, parts

Cell = EncoderCell | DecoderCell
Memory = list[tuple[Tensor, Tensor]]  # keys and values of the source, by layer

# The modules that the kernels know; a subclass may compute something else.
KNOWN = {
    *(Embedding, EncoderCell, DecoderCell, SelfAttention, CrossAttention, FeedForward),
    *(HadamardBinding, NoBinding, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout),
}
# Other classes whose methods the kernels stand for.
REPLACED = (Packed, PackedPattern, Padded, PaddedPattern, KeyValueCache)
WIDTH = 8  # floats of a vector of the kernels
EPSILON = 1e-5  # of all normalisations


def _own_names(kind: type[Any]) -> set[str]:
    """Return the names that a class defines, without those of `nn.Module`, but with its call."""
    bases = set(kind.__mro__) - set(nn.Module.__mro__)
    own = {
        name
        for base in bases
        for name, value in vars(base).items()
        if not name.startswith("__") and not isinstance(value, classmethod)
    }
    return own | ({"__call__", "__getattr__"} if issubclass(kind, nn.Module) else set())


# What an attribute of an instance must not hide.
METHODS = {
    kind: frozenset(name for name in dir(kind) if callable(getattr(kind, name))) for kind in KNOWN
}
# What the classes define when this module is imported, to detect that something is replaced later.
ORIGINALS = [
    (kind, attrgetter(*names), attrgetter(*names)(kind))
    for kind in (*KNOWN, *REPLACED)
    if (names := sorted(_own_names(kind)))
]


class FusedState:
    """The state of the decoder between steps of the kernel."""

    def __init__(
        self,
        embedding: Embedding,
        cells: Sequence[DecoderCell],
        weights: Sequence[Tensor | None],
        memory: Memory,
        ends: list[int],
        max_length: int,
    ) -> None:
        key, _ = memory[0]
        # Another reference to their memory, which a cast or a move of the model does not release.
        self._weights = [None if weight is None else weight.detach() for weight in weights]
        self._weight_addresses = _addresses(self._weights)
        self._memory = [tensor for pair in memory for tensor in pair]
        self._memory_addresses = _addresses(self._memory)
        offsets = torch.from_numpy(np.asarray(ends))
        self._starts, self._lengths = offsets[:-1], offsets.diff()
        n_heads, d_head, d_ff, binds = _sizes(cells[0])
        # (layer, key or value, row, room, d_model)
        self._cache = key.new_empty(len(cells), 2, len(ends) - 1, 0, n_heads * d_head)
        self._embedding = embedding
        self.model: Any = None  # the one whose steps these are
        self._position, self._max_length = 0, max_length
        self._n_vocab = embedding.symbols.num_embeddings
        self._sizes = [len(cells), n_heads, d_head, d_ff, self._n_vocab]
        self._last_sizes = [binds, key.stride(2), torch.get_num_threads()]

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows, and these questions or all of them."""
        self._cache = self._cache.index_select(2, rows)
        if questions is not None:
            self._starts, self._lengths = self._starts[questions], self._lengths[questions]

    def step(self, previous: Tensor) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        if previous.shape != self._cache.shape[2:3]:
            raise ValueError(f"the state has {self._n_rows} rows, not {len(previous)}")
        self._make_room()
        logits = self._cache.new_empty(len(previous), self._n_vocab)
        self._call("decoder_step", [], previous.to(torch.int64).contiguous(), logits)
        self._position += 1
        return logits

    def greedy(self, sos: int, eos: int, pad: int) -> Tensor:
        """Return the answers by greedy search, as `decoding.greedy` does."""
        n_rows = self._n_rows
        previous, tokens = torch.full((n_rows,), sos), torch.full((n_rows, self._max_length), pad)
        n_running, running = torch.tensor([n_rows]), torch.arange(n_rows)
        logits = self._cache.new_empty(n_rows, self._n_vocab)
        while n_running.item() and self._position < self._max_length:
            self._make_room()
            last_sizes = [eos, self._max_length]
            self._call("decoder_greedy", last_sizes, previous, logits, n_running, running, tokens)
            self._position = self._cache.shape[3]
        if n_running.item():
            return tokens
        n_steps = (tokens == eos).any(dim=0).nonzero().max() + 1
        return tokens[:, : int(n_steps)]

    @property
    def _n_rows(self) -> int:
        return self._cache.shape[2]

    def _make_room(self) -> None:
        """Double the cache if it is full; it starts small, because most answers are short."""
        n_questions = len(self._lengths)
        if self._n_rows // max(1, n_questions) * n_questions != self._n_rows:
            raise ValueError(f"{self._n_rows} rows are not those of {n_questions} questions")
        self._embedding.check_length(self._position + 1)
        room = self._cache.shape[3]
        if self._position < room:
            return
        larger = min(self._max_length, max(FIRST_ROOM, 2 * room), self._embedding.n_positions)
        if self._position == larger:
            raise ValueError(f"the cache has {room} positions")
        shape = list(self._cache.shape)
        shape[3] = larger
        cache = self._cache.new_empty(shape)
        cache[:, :, :, : self._position] = self._cache
        self._cache = cache

    def _call(self, kernel: str, last_sizes: list[int], *arguments: Tensor) -> None:
        sizes = [self._n_rows, len(self._lengths), *self._sizes, self._position]
        native.call(
            kernel,
            native.integers([*sizes, self._cache.shape[3], *self._last_sizes, *last_sizes]),
            self._weight_addresses,
            self._memory_addresses,
            self._starts,
            self._lengths,
            self._cache,
            *arguments,
        )


def fused_state(
    embedding: Embedding,
    cells: Sequence[DecoderCell],
    state: Tensor,
    layout: Layout,
    max_length: int,
) -> FusedState | None:
    """Return the state before the first step, or None if the kernel does not support the decoder.

    `state` is the output of the encoder in `layout`.
    """
    if not cells or not is_fusible((embedding, *cells)):
        return None
    ends, weights = _ends(layout), [*_embedding_weights(embedding), *_weights(cells)]
    if ends is None or not _fit_embedding(weights, embedding, cells):
        return None
    if not _fit(weights[4:], cells):
        return None
    memory = _memory(cells, state)
    if memory is None or not _has_vectors(memory, cells, ends):
        return None
    return FusedState(embedding, cells, weights, memory, ends, max_length)


def fused_memory(cells: Sequence[DecoderCell], state: Tensor) -> Memory | None:
    """Return the keys and values of the source for each cell, or None if that is not supported.

    `state` is the output of the encoder (1, source, d_model). They are contiguous for each cell.
    """
    return _memory(cells, state) if is_fusible(cells) else None


def _memory(cells: Sequence[DecoderCell], state: Tensor) -> Memory | None:
    if not _is_plain(state) or state.dim() != 3 or len(state) != 1:
        return None
    n_heads, d_head, _, _ = _sizes(cells[0])
    d_model, n_positions = n_heads * d_head, state.shape[1]
    maps = [cell.cross_attention.memory_proj for cell in cells]
    if state.shape[2] != d_model or any(_sizes(cell) != _sizes(cells[0]) for cell in cells):
        return None
    if any(one.weight.shape != (2 * d_model, d_model) for one in maps):
        return None
    memory = state.new_empty(len(cells), 2, n_positions, n_heads, d_head)
    native.call(
        "memory_forward",
        native.integers([n_positions, len(cells), d_model, torch.get_num_threads()]),
        _addresses([weight for one in maps for weight in _affine(one)]),
        state,
        memory,
    )
    return [(key.transpose(0, 1)[None], value.transpose(0, 1)[None]) for key, value in memory]


def fused_cells(
    cells: Sequence[Cell],
    state: Tensor,
    layout: Layout,
    memory: Memory | None = None,
    memory_layout: Layout | None = None,
) -> Tensor | None:
    """Return the output of the last cell, or None if the kernel does not support the cells.

    Attention is causal if there is a memory: the keys and values of the source for each cell.
    """
    if not is_fusible(cells) or not _is_plain(state):
        return None
    ends, memory_ends = _ends(layout), None if memory_layout is None else _ends(memory_layout)
    n_heads, d_head, d_ff, binds = _sizes(cells[0])
    weights = [*_weights(cells)]
    if ends is None or state.shape != (1, ends[-1], n_heads * d_head) or not _fit(weights, cells):
        return None
    if memory is not None and (
        memory_ends is None
        or len(memory_ends) != len(ends)
        or not _has_vectors(memory, cells, memory_ends)
    ):
        return None
    strides = [0, 0] if memory is None else [*memory[0][0].stride()[1:3]]
    sizes = [len(ends) - 1, len(cells), n_heads, d_head, d_ff, binds, int(memory is not None)]
    output = state.clone(memory_format=torch.contiguous_format)
    native.call(
        "cells_forward",
        native.integers([*sizes, *strides, torch.get_num_threads()]),
        _addresses(weights),
        None if memory is None else _addresses([tensor for pair in memory for tensor in pair]),
        native.integers(ends),
        None if memory_ends is None else native.integers(memory_ends),
        output,
    )
    return output


def is_fusible(modules: Sequence[nn.Module], *, trains: bool = False) -> bool:
    """Whether the kernels compute what these modules would, in the current modes of torch.

    With `trains`, the kernels are those of training, which also compute products in bfloat16.
    """
    return (
        native.library() is not None
        and len(modules) > 0
        and torch.is_grad_enabled() == trains
        and not torch.compiler.is_compiling()  # nor exporting
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and (not torch.is_autocast_enabled("cpu") or (trains and _casts_to_bfloat16()))
        # Torch has no public API for hooks of all modules.
        and not torch.nn.modules.module._global_forward_hooks
        and not torch.nn.modules.module._global_forward_pre_hooks
        and not torch.nn.modules.module._global_backward_hooks
        and not torch.nn.modules.module._global_backward_pre_hooks
        and all(defined(kind) == originals for kind, defined, originals in ORIGINALS)
        and all(_is_known(part, trains) for module in modules for part in parts(module))
    )


def is_trainable(cells: Sequence[Cell], state: Tensor, layout: Layout) -> bool:
    """Whether the kernels of training support cells and states, those of the cells or their source.

    The states are (1, position, d_model).
    """
    if type(layout) is not Packed or not is_fusible(cells, trains=True):
        return False
    n_heads, d_head, _, _ = _sizes(cells[0])
    d_model = n_heads * d_head
    memory_maps = [
        cell.cross_attention.memory_proj.weight for cell in cells if isinstance(cell, DecoderCell)
    ]
    return (
        _is_plain(state)
        and state.shape == (1, layout.offsets[-1], d_model)
        and _fit([*_weights(cells)], cells)
        and all(weight.shape == (2 * d_model, d_model) for weight in memory_maps)
    )


def _casts_to_bfloat16() -> bool:
    return torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_known(part: nn.Module, trains: bool) -> bool:
    """Whether a module computes what the kernels compute, and nobody observes it."""
    kind: Any = type(part)
    if kind not in KNOWN or part._forward_hooks or part._forward_pre_hooks:
        return False
    if part._backward_hooks or part._backward_pre_hooks:
        return False
    if part.training and (not trains or _drops(part)):
        return False
    if not METHODS[kind].isdisjoint(vars(part)):  # an attribute that hides a method
        return False
    if not all(map(_is_plain, _own_weights(part))):
        return False
    if isinstance(part, Traced) and part._traces:
        return False
    if isinstance(part, nn.Linear):
        return part.in_features % WIDTH == 0 and part.bias is not None
    if isinstance(part, SelfAttention):
        return part.binding.d_head % WIDTH == 0
    if isinstance(part, nn.Embedding):
        return part.max_norm is None
    return not isinstance(part, nn.LayerNorm) or (
        part.eps == EPSILON and part.elementwise_affine and part.bias is not None
    )


def _drops(part: nn.Module) -> bool:
    """Whether a module sets some numbers to zero in training."""
    if isinstance(part, nn.Dropout):
        return part.p > 0
    return isinstance(part, SelfAttention | CrossAttention) and part.dropout > 0


def _own_weights(part: nn.Module) -> tuple[Tensor, ...]:
    """Return the weights of a known module; `parameters()` would take ten times as long."""
    if isinstance(part, nn.Embedding):
        return (part.weight,)
    if not isinstance(part, nn.Linear | nn.LayerNorm) or part.weight is None:
        return ()
    return (part.weight,) if part.bias is None else (part.weight, part.bias)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a kernel can read a tensor; those of `torch.export`, for example, have no memory."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.is_contiguous()
    )


def _has_vectors(memory: Memory, cells: Sequence[Cell], ends: list[int]) -> bool:
    """Whether keys and values are float32 and have contiguous heads, and all the same strides."""
    n_heads, d_head, _, _ = _sizes(cells[0])
    strides = memory[0][0].stride()
    return (
        len(memory) == len(cells)
        and strides[3] == 1
        and strides[1] == d_head
        and all(
            type(tensor) is Tensor
            and tensor.dtype == torch.float32
            and tensor.is_cpu
            and tensor.stride() == strides
            and tensor.shape == (1, n_heads, ends[-1], d_head)
            for pair in memory
            for tensor in pair
        )
    )


def _fit(weights: Sequence[Tensor | None], cells: Sequence[Cell]) -> bool:
    """Whether all cells have the sizes and the binding of the first, as the kernels assume."""
    n_heads, d_head, d_ff, binds = sizes = _sizes(cells[0])
    d_model, crosses = n_heads * d_head, isinstance(cells[0], DecoderCell)
    if any(_sizes(cell) != sizes or type(cell) is not type(cells[0]) for cell in cells):
        return False
    outputs = [3 + binds, 1, 1 + binds, 1] if crosses else [3 + binds, 1]
    maps = [(n * d_model, d_model) for n in outputs] + [(d_ff, d_model), (d_model, d_ff)]
    wanted: list[tuple[int, ...]] = [(d_model,)] * (8 if crosses else 6)
    wanted += [shape for one in maps for shape in (one, one[:1])]
    shapes = [weight.shape for weight in weights if weight is not None]
    return shapes == wanted * len(cells)


def _fit_embedding(
    weights: Sequence[Tensor | None], embedding: Embedding, cells: Sequence[Cell]
) -> bool:
    """Whether the first four weights, of the embedding, have the sizes that the kernel assumes."""
    n_heads, d_head, _, _ = _sizes(cells[0])
    d_model, positions = n_heads * d_head, cast(Tensor, weights[3])
    wanted = [] if embedding.role_proj is None else [(d_model, d_model), (d_model,)]
    wanted += [(embedding.symbols.num_embeddings, d_model), (embedding.n_positions, d_model)]
    shapes = [weight.shape for weight in weights[:4] if weight is not None]
    return shapes == wanted and _is_plain(positions)


def _ends(layout: Layout) -> list[int] | None:
    """Return the offsets of packed rows; a single row is packed; None if rows are padded."""
    if type(layout) is Packed:
        return cast(list[int], layout.offsets.tolist())
    if type(layout) is Padded and len(layout) == 1 and bool(layout.filled.all()):
        return [0, layout.longest]
    return None


def _sizes(cell: Cell) -> tuple[int, int, int, int]:
    """Return the heads, d_head and d_ff of a cell, and whether it binds roles, as 0 or 1."""
    attention = cell.self_attention
    binds = isinstance(attention.binding, HadamardBinding)
    d_ff = cell.feed_forward.expand.out_features
    return attention.n_heads, attention.binding.d_head, d_ff, int(binds)


def _embedding_weights(embedding: Embedding) -> Iterator[Tensor | None]:
    """Yield the weights of an embedding in the order of the structure in C."""
    yield from _affine(embedding.role_proj)
    yield embedding.symbols.weight
    yield embedding.positions_like(embedding.symbols.weight)


def _weights(cells: Iterable[Cell]) -> Iterator[Tensor | None]:
    """Yield the weights of cells in the order of the structure in C."""
    for cell in cells:
        own, forward = cell.self_attention, cell.feed_forward
        cross = cell.cross_attention if isinstance(cell, DecoderCell) else None
        cross_norm = cell.cross_attention_norm if isinstance(cell, DecoderCell) else None
        for layer in (
            *(cell.self_attention_norm, cross_norm, cell.feed_forward_norm, cell.output_norm),
            *(own.in_proj, own.out_proj),
            *((None, None) if cross is None else (cross.in_proj, cross.out_proj)),
            *(forward.expand, forward.contract),
        ):
            yield from _affine(layer)


def _affine(layer: nn.Linear | nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if layer is None else (layer.weight, layer.bias)


def _addresses(tensors: Sequence[Tensor | None]) -> Any:
    given = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(given))(*cast(list[Any], given))
