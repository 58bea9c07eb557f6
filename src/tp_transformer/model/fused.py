"""The cells of a Transformer by C kernels, which compute the same.

A kernel computes all cells of the encoder, or of the decoder for known answers, on packed rows;
`fused_state.py` has the decoding steps. A step of a single question consists of hundreds of small
operations, whose start takes longer than their arithmetic. Kernels are used for inference
in float32 on a CPU, with the cells of this package as they are. A subclass, a hook, a trace, a
replaced method (of an instance or, after the import of this module, of a class) or layers of other
sizes make the functions here return None, and the model then runs its cells.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import CPU, Packed, PackedPattern
from tp_transformer.data.layout.padded import Padded, PaddedPattern
from tp_transformer.foundation import native
from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.cache import KeyValueCache
from tp_transformer.model.fused_weights import (
    Cell,
    addresses,
    cell_weights,
    copied,
    embedding_weights,
    fit,
    fit_embedding,
    has_int8,
    is_plain,
    memory_maps,
    sizes_of,
    view_from,
)
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.quantised import Int8Linear
from tp_transformer.model.snapshot import Snapshot
from tp_transformer.model.trace import Traced, parts

Memory = list[tuple[Tensor, Tensor]]  # keys and values of the source, by layer

# The modules that the kernels know; a subclass may compute something else.
KNOWN = {
    *(Embedding, EncoderCell, DecoderCell, SelfAttention, CrossAttention, FeedForward),
    *(HadamardBinding, NoBinding, Int8Linear, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout),
}
# Other classes whose methods the kernels stand for.
REPLACED = (Packed, PackedPattern, Padded, PaddedPattern, KeyValueCache)
WIDTH = 8  # floats of a vector of the kernels
PANEL = 16  # outputs of a panel of weights
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


class Known:
    """An embedding and cells that the kernels know, and what the kernels read of them.

    They are checked and collected once, and again when something has changed. A copy or a pickle
    of a model does not have it.
    """

    def __init__(self, embedding: Embedding, cells: Sequence[Cell]) -> None:
        self.sizes, self.n_layers = sizes_of(cells[0]), len(cells)
        own = [*embedding_weights(embedding)]
        decoder_cells = [cell for cell in cells if isinstance(cell, DecoderCell)]
        maps = memory_maps(decoder_cells) if decoder_cells else None
        self.weights, self.maps = [*own, *cell_weights(cells)], maps
        self.addresses = addresses(self.weights)
        self.cell_addresses = view_from(self.addresses, len(own))
        self.map_addresses = None if maps is None else addresses(maps)
        self.head_addresses: Any = None  # of the maps with panels, by `with_panels`; None in int8
        self._has_panels = False
        tensors = [weight for weight in (*self.weights, *(maps or ())) if weight is not None]
        # Other references to the memory of the weights, which the kernels may be reading while
        # another thread casts or moves the model; and the panels.
        self._kept = [tensor.detach() for tensor in tensors]
        self._snapshot = Snapshot([embedding, *cells], tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def with_panels(self) -> "Known":
        """Return the stack with weights packed into panels; itself if it has them or is in int8.

        The panels do not follow later changes of the weights.
        """
        n_own = len(self.addresses) - len(self.cell_addresses)
        if self._has_panels or has_int8([*self.weights[n_own:], *(self.maps or ())]):
            return self
        n_heads, d_head, d_ff, binds = self.sizes
        d_model = n_heads * d_head
        known = object.__new__(Known)  # `copy` would return None, because of `__reduce__`
        vars(known).update(vars(self), _has_panels=True)
        # The addresses are those of the memory in `_kept`; a weight may be elsewhere meanwhile.
        known.addresses = copied(self.addresses)
        known.cell_addresses = view_from(known.addresses, n_own)
        size = sum(whole_panels(n * d_model) for n in (3 + binds, 1 + binds, 1, 1)) * d_model
        size += whole_panels(d_ff) * d_model + whole_panels(d_model) * d_ff
        layers = self._packed("pack_layers", [d_model, d_ff, binds], known.cell_addresses, size)
        known._kept = [*self._kept, layers]
        if self.map_addresses is not None:
            known.head_addresses = copied(self.map_addresses)
            size = n_heads * (whole_panels(d_model) * d_head + whole_panels(d_head) * d_model)
            heads = self._packed("pack_heads", [d_model, d_head], known.head_addresses, size)
            known._kept.append(heads)
        return known

    def _packed(self, kernel: str, sizes: list[int], weights: Any, size: int) -> Tensor:
        """Return the panels of all layers, of `size` floats each; `weights` get their addresses."""
        panels = torch.empty(self.n_layers * size, dtype=torch.float32, device=CPU)
        given = native.integers([self.n_layers, *sizes, size, torch.get_num_threads()])
        native.call(kernel, given, weights, panels)
        return panels

    def is_of(self, embedding: Embedding, cells: Sequence[Cell]) -> bool:
        """Whether these are the embedding and the cells, and nothing of them has changed."""
        return self._snapshot.holds([embedding, *cells])


def whole_panels(n_outputs: int) -> int:
    """Return a number of outputs, rounded up to whole panels."""
    return -(-n_outputs // PANEL) * PANEL


def known_stack(before: Known | None, embedding: Embedding, cells: Sequence[Cell]) -> Known | None:
    """Return what kernels read of a stack, `before` if it is unchanged; None if not supported.

    The caller has checked `has_known_modes`.
    """
    if before is not None and before.is_of(embedding, cells):
        return before
    if not cells or not is_fusible((embedding, *cells)):
        return None
    return Known(embedding, cells) if fit_embedding(embedding, cells) and fit(cells) else None


def fused_embedding(
    embedding: Embedding, known: Known, source: Tensor, layout: Layout
) -> Tensor | None:
    """Return the embedded tokens of rows, or None if the kernel does not support their layout."""
    ends = packed_ends(layout)
    is_plain_ids = source.dtype == torch.int64 and source.is_cpu and source.is_contiguous()
    if ends is None or source.shape != (1, ends[-1]) or not is_plain_ids:
        return None
    embedding.check_length(layout.longest)
    return embed(embedding, known, source, ends)


def embed(embedding: Embedding, known: Known, source: Tensor, ends: list[int]) -> Tensor:
    """Return the embedded tokens (1, position, d_model) of packed rows of ids by the kernel."""
    d_model = known.sizes[0] * known.sizes[1]
    sizes = [len(ends) - 1, d_model, embedding.symbols.num_embeddings, torch.get_num_threads()]
    state = torch.empty(1, ends[-1], d_model, dtype=torch.float32, device=CPU)
    native.call(
        *("embed_forward", native.integers(sizes), known.addresses, native.integers(ends)),
        *(source, state),
    )
    return state


def fused_cells(
    cells: Sequence[Cell],
    state: Tensor,
    layout: Layout,
    memory: Memory | None = None,
    memory_layout: Layout | None = None,
    *,
    known: Known | None = None,
) -> Tensor | None:
    """Return the output of the last cell, or None if the kernel does not support the cells.

    Attention is causal if there is a memory: the keys and values of the source for each cell.
    `known` has the same cells, or the cells are checked here.
    """
    if known is None and not (is_fusible(cells) and fit(cells)):
        return None
    ends = packed_ends(layout)
    memory_ends = None if memory_layout is None else packed_ends(memory_layout)
    sizes = sizes_of(cells[0])
    d_model = sizes[0] * sizes[1]
    if ends is None or not is_plain(state) or state.shape != (1, ends[-1], d_model):
        return None
    if memory is not None and (
        memory_ends is None
        or len(memory_ends) != len(ends)
        or not _has_vectors(memory, cells, memory_ends)
    ):
        return None
    weights = addresses([*cell_weights(cells)]) if known is None else known.cell_addresses
    output = state.clone(memory_format=torch.contiguous_format)
    run_cells([len(cells), *sizes], weights, output, ends, memory, memory_ends)
    return output


def run_cells(
    sizes: list[int],
    weights: Any,
    state: Tensor,
    ends: list[int],
    memory: Memory | None = None,
    memory_ends: list[int] | None = None,
) -> None:
    """Run all cells in place by the kernel: `state` is the input, and becomes the output.

    `sizes` has the number of cells and their sizes, `weights` the addresses of their weights.
    """
    strides = [0, 0] if memory is None else [*memory[0][0].stride()[1:3]]
    of_memory = [int(memory is not None), *strides]
    native.call(
        "cells_forward",
        native.integers([len(ends) - 1, *sizes, *of_memory, torch.get_num_threads()]),
        weights,
        None if memory is None else addresses([tensor for pair in memory for tensor in pair]),
        native.integers(ends),
        None if memory_ends is None else native.integers(memory_ends),
        state,
    )


def is_fusible(modules: Sequence[nn.Module], *, trains: bool = False) -> bool:
    """Whether the kernels compute what these modules would, in the current modes of torch.

    With `trains`, the kernels are those of training, which also compute products in bfloat16.
    """
    return (
        len(modules) > 0
        and has_known_modes(trains)
        and all(_is_known(part, trains) for module in modules for part in parts(module))
    )


def has_known_modes(trains: bool = False) -> bool:
    """Whether torch runs modules as the kernels do, and no class has another method."""
    return (
        native.library() is not None
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
    )


def is_trainable(cells: Sequence[Cell], state: Tensor, layout: Layout) -> bool:
    """Whether the kernels of training support cells and states, those of the cells or their source.

    The states are (1, position, d_model).
    """
    if type(layout) is not Packed or not is_fusible(cells, trains=True):
        return False
    n_heads, d_head, _, _ = sizes_of(cells[0])
    d_model = n_heads * d_head
    memory_maps = [
        cell.cross_attention.memory_proj.weight for cell in cells if isinstance(cell, DecoderCell)
    ]
    return (
        is_plain(state)
        and state.shape == (1, layout.offsets[-1], d_model)
        and fit(cells)
        and all(weight.shape == (2 * d_model, d_model) for weight in memory_maps)
    )


def _casts_to_bfloat16() -> bool:
    return torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_known(part: nn.Module, trains: bool) -> bool:
    """Whether a module computes what the kernels compute, and nobody observes it."""
    kind: Any = type(part)
    if kind not in KNOWN or _has_hooks(part):
        return False
    if part.training and (not trains or _drops(part)):
        return False
    if not METHODS[kind].isdisjoint(vars(part)):  # an attribute that hides a method
        return False
    if not all(map(is_plain, _own_weights(part))):
        return False
    if isinstance(part, Traced) and part._traces:
        return False
    if isinstance(part, Int8Linear):
        return not trains and part.packed is not None and part.in_features % WIDTH == 0
    if isinstance(part, nn.Linear):  # training: any d_ff; d_model is a multiple, as d_head is
        return part.bias is not None and (trains or part.in_features % WIDTH == 0)
    if isinstance(part, SelfAttention):
        return part.binding.d_head % WIDTH == 0
    if isinstance(part, nn.Embedding):
        return part.max_norm is None
    return not isinstance(part, nn.LayerNorm) or (
        part.eps == EPSILON and part.elementwise_affine and part.bias is not None
    )


def _has_hooks(part: nn.Module) -> bool:
    forward = part._forward_hooks or part._forward_pre_hooks
    return bool(forward or part._backward_hooks or part._backward_pre_hooks)


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


def _has_vectors(memory: Memory, cells: Sequence[Cell], ends: list[int]) -> bool:
    """Whether keys and values are float32 and have contiguous heads, and all the same strides."""
    n_heads, d_head, _, _ = sizes_of(cells[0])
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


def packed_ends(layout: Layout) -> list[int] | None:
    """Return the offsets of packed rows; a single row is packed; None if rows are padded."""
    if type(layout) is Packed:
        return cast(list[int], layout.offsets.tolist())
    if type(layout) is Padded and len(layout) == 1 and bool(layout.filled.all()):
        return [0, layout.longest]
    return None
