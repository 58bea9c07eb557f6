"""The weights of embeddings and cells in the order in which the C kernels read them."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from tp_transformer.model.binding import HadamardBinding
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell
from tp_transformer.model.quantised import BLOCK, Int8Linear

Cell = EncoderCell | DecoderCell
Affine = nn.Linear | Int8Linear | nn.LayerNorm


def fit(cells: Sequence[Cell]) -> bool:
    """Whether all cells have the sizes and the binding of the first, as the kernels assume."""
    n_heads, d_head, d_ff, binds = sizes = sizes_of(cells[0])
    d_model, crosses = n_heads * d_head, isinstance(cells[0], DecoderCell)
    if any(sizes_of(cell) != sizes or type(cell) is not type(cells[0]) for cell in cells):
        return False
    outputs = [3 + binds, 1, 1 + binds, 1] if crosses else [3 + binds, 1]
    maps = [(n * d_model, d_model) for n in outputs] + [(d_ff, d_model), (d_model, d_ff)]
    wanted: list[tuple[int, ...]] = [(d_model,)] * (8 if crosses else 6)
    wanted += [shape for one in maps for shape in (one, one[:1])]
    shapes = [shape for cell in cells for layer in _layers(cell) for shape in shapes_of(layer)]
    return shapes == wanted * len(cells)


def shapes_of(layer: Affine | None) -> list[torch.Size]:
    """Return the shapes of the weight and the bias of a layer."""
    own = () if layer is None else (layer.weight, layer.bias)
    return [weight.shape for weight in own if weight is not None]


def sizes_of(cell: Cell) -> tuple[int, int, int, int]:
    """Return the heads, d_head and d_ff of a cell, and whether it binds roles, as 0 or 1."""
    attention = cell.self_attention
    binds = isinstance(attention.binding, HadamardBinding)
    d_ff = cell.feed_forward.expand.out_features
    return attention.n_heads, attention.binding.d_head, d_ff, int(binds)


def fit_embedding(embedding: Embedding, cells: Sequence[Cell]) -> bool:
    """Whether the weights of the embedding have the sizes that the kernels assume."""
    n_heads, d_head, _, _ = sizes_of(cells[0])
    d_model, symbols = n_heads * d_head, embedding.symbols.weight
    positions = embedding.positions_like(symbols)
    wanted = [] if embedding.role_proj is None else [(d_model, d_model), (d_model,)]
    wanted += [(embedding.symbols.num_embeddings, d_model), (embedding.n_positions, d_model)]
    shapes = [*shapes_of(embedding.role_proj), symbols.shape, positions.shape]
    return shapes == wanted and is_plain(positions)


def memory_maps(cells: Sequence[DecoderCell]) -> list[Tensor | None] | None:
    """Return the maps of keys and values of the source, or None if the kernels do not support them.

    The cells have the same sizes.
    """
    n_heads, d_head, _, _ = sizes_of(cells[0])
    d_model = n_heads * d_head
    maps = [cell.cross_attention.memory_proj for cell in cells]
    if any(one.weight.shape != (2 * d_model, d_model) for one in maps):
        return None
    if d_model % BLOCK and any(isinstance(one, Int8Linear) for one in maps):
        return None
    return [weight for one in maps for weight in affine(one)]


def has_int8(maps: Sequence[Tensor | None]) -> bool:
    """Whether one of these maps, as `affine` returns them, is in int8."""
    return any(packed is not None for packed in maps[2 :: len(affine(None))])


def is_plain(tensor: Tensor) -> bool:
    """Whether a kernel can read a tensor; those of `torch.export`, for example, have no memory."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.is_contiguous()
    )


def embedding_weights(embedding: Embedding) -> Iterator[Tensor | None]:
    """Yield the weights of an embedding in the order of the structure in C."""
    yield from affine(embedding.role_proj)
    yield embedding.symbols.weight
    yield embedding.positions_like(embedding.symbols.weight)


def cell_weights(cells: Iterable[Cell]) -> Iterator[Tensor | None]:
    """Yield the weights of cells in the order of the structure in C."""
    for cell in cells:
        for layer in _layers(cell):
            yield from affine(layer)


def _layers(cell: Cell) -> tuple[Affine | None, ...]:
    """Return the layers of a cell in the order of the structure in C."""
    own, forward = cell.self_attention, cell.feed_forward
    cross = cell.cross_attention if isinstance(cell, DecoderCell) else None
    cross_norm = cell.cross_attention_norm if isinstance(cell, DecoderCell) else None
    return (
        *(cell.self_attention_norm, cross_norm, cell.feed_forward_norm, cell.output_norm),
        *(own.in_proj, own.out_proj),
        *((None, None) if cross is None else (cross.in_proj, cross.out_proj)),
        *(forward.expand, forward.contract),
    )


def affine(layer: Affine | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    """Return the weight and the bias of a layer, or its map in int8, as in the structure in C.

    The last pointer of the structure is that of its panels, set by `Known.with_panels`, and by the
    kernel for cells in a copy of its own.
    """
    if layer is None:
        return None, None, None, None
    if isinstance(layer, Int8Linear):
        return None, None, layer.packed, None
    return layer.weight, layer.bias, None, None


def addresses(tensors: Sequence[Tensor | None]) -> Any:
    """Return the addresses of tensors, as an array of pointers."""
    return pointers([None if tensor is None else tensor.data_ptr() for tensor in tensors])


def pointers(given: Sequence[int | None]) -> Any:
    """Return an array of pointers for a kernel; None is the null pointer."""
    return (ctypes.c_void_p * len(given))(*cast(Sequence[Any], given))


def copied(array: Any) -> Any:
    """Return a copy of an array of pointers."""
    return type(array).from_buffer_copy(array)


def view_from(array: Any, start: int) -> Any:
    """Return the elements of an array of pointers from `start` on, in the same memory."""
    n_left, size = len(array) - start, ctypes.sizeof(ctypes.c_void_p)
    return (ctypes.c_void_p * n_left).from_buffer(array, start * size)
