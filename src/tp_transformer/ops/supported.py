"""Which embeddings and cells the C kernels compute as the modules would.

The kernels stand for the `forward` of the classes below. They read the fields and the weights of
modules, and support exactly these classes, sizes and types, if nobody observes a module by a hook
or a trace. A method that is replaced on a class or an instance has no effect on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.layout.base import Layout
from tp_transformer.model.layout.packed import Packed
from tp_transformer.model.trace import Traced, parts
from tp_transformer.ops import library
from tp_transformer.ops.int8 import BLOCK, Int8Linear
from tp_transformer.ops.library import is_plain, runs_as_written

Cell = EncoderCell | DecoderCell
Linear = nn.Linear | Int8Linear

KNOWN = {
    *(Embedding, EncoderCell, DecoderCell, SelfAttention, CrossAttention, FeedForward),
    *(HadamardBinding, NoBinding, Int8Linear, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout),
}
WIDTH = 8  # floats of a vector of the kernels
EPSILON = 1e-5  # of all normalisations


@dataclass(frozen=True)
class Sizes:
    """The sizes that all cells of a stack have in common."""

    n_heads: int
    d_head: int
    d_ff: int
    binds: bool  # whether attention binds fillers to roles

    @classmethod
    def of(cls, cell: Cell) -> "Sizes":
        """Return the sizes of a cell, according to its self-attention."""
        attention = cell.self_attention
        binds = isinstance(attention.binding, HadamardBinding)
        d_ff = len(cell.feed_forward.expand.weight)
        return cls(attention.n_heads, attention.binding.d_head, d_ff, binds)

    @property
    def d_model(self) -> int:
        """The size of the hidden states."""
        return self.n_heads * self.d_head


def can_infer(embedding: Embedding, *stacks: Sequence[Cell]) -> bool:
    """Whether the kernels of inference compute these modules, in float32 or int8."""
    modules = [embedding, *(cell for cells in stacks for cell in cells)]
    return (
        all(stacks)
        and all(_is_known(part, trains=False) for module in modules for part in parts(module))
        and all(_fit(cells, Sizes.of(stacks[0][0])) for cells in stacks)
        and _fits(embedding, Sizes.of(stacks[0][0]).d_model)
    )


def can_train(cells: Sequence[Cell], *states: tuple[Tensor, Layout | None]) -> bool:
    """Whether the kernels of training compute these cells for all states (1, position, d_model)."""
    return (
        all(type(layout) is Packed for _, layout in states)
        and len(cells) > 0
        and torch.is_grad_enabled()
        and runs_as_written()
        and library.load() is not None
        and not has_global_hooks()
        and _casts_to_bfloat16_or_not()
        and all(_is_known(part, trains=True) for cell in cells for part in parts(cell))
        and _fit(cells, Sizes.of(cells[0]))
        and all(
            isinstance(layout, Packed)
            and _is_read(state, (1, int(layout.offsets[-1]), Sizes.of(cells[0]).d_model))
            for state, layout in states
        )
    )


def has_global_hooks() -> bool:
    """Whether hooks of all modules are registered, for which torch has no public API."""
    hooks = torch.nn.modules.module
    forward = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    return bool(forward or hooks._global_backward_hooks or hooks._global_backward_pre_hooks)


def has_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks that a call would run, or is compiled by torch."""
    forward = part._forward_hooks or part._forward_pre_hooks or part._compiled_call_impl
    return bool(forward or part._backward_hooks or part._backward_pre_hooks)


def _casts_to_bfloat16_or_not() -> bool:
    is_low = torch.is_autocast_enabled("cpu")
    return not is_low or torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_known(part: nn.Module, *, trains: bool) -> bool:
    """Whether the kernels know a module by itself, and nobody observes it."""
    if type(part) not in KNOWN or has_hooks(part) or (isinstance(part, Traced) and part._traces):
        return False
    if part.training and (not trains or _drops(part)):
        return False
    if isinstance(part, nn.Linear):  # training: any d_ff; d_model is a multiple, as d_head is
        return trains or part.in_features % WIDTH == 0
    if isinstance(part, Int8Linear):
        return not trains and part.in_features % WIDTH == 0
    if isinstance(part, nn.LayerNorm):
        return part.eps == EPSILON
    return not isinstance(part, nn.Embedding) or part.max_norm is None


def _drops(part: nn.Module) -> bool:
    """Whether a module sets some numbers to zero in training."""
    if isinstance(part, nn.Dropout):
        return part.p > 0
    return isinstance(part, SelfAttention | CrossAttention) and part.dropout > 0


def _fit(cells: Sequence[Cell], sizes: Sizes) -> bool:
    """Whether all cells are of one kind, and have these sizes in all their parts."""
    kind = type(cells[0])
    return all(
        type(cell) is kind
        and Sizes.of(cell) == sizes
        and all(_has(attention, sizes) for attention in _attentions(cell))
        and all(_is_affine(layer, *shape) for layer, shape in _maps(cell, sizes))
        and all(_is_norm(norm, sizes.d_model) for norm in norms_of(cell) if norm is not None)
        for cell in cells
    )


def _attentions(cell: Cell) -> Iterator[SelfAttention | CrossAttention]:
    yield cell.self_attention
    if isinstance(cell, DecoderCell):
        yield cell.cross_attention


def _has(attention: SelfAttention | CrossAttention, sizes: Sizes) -> bool:
    """Whether an attention has the heads and the binding of the others."""
    binding = attention.binding
    names = ("query", "role") if isinstance(attention, CrossAttention) else SELF_NAMES
    return (
        attention.n_heads == sizes.n_heads
        and binding.d_head == sizes.d_head
        and sizes.d_head % WIDTH == 0
        and isinstance(binding, HadamardBinding) == sizes.binds
        and not binding.binds_values
        and attention.names == (names if sizes.binds else names[:-1])
        and getattr(attention, "memory_names", MEMORY_NAMES) == MEMORY_NAMES
    )


SELF_NAMES, MEMORY_NAMES = ("query", "key", "value", "role"), ("key", "value")


def norms_of(cell: Cell) -> tuple[nn.LayerNorm | None, ...]:
    """Return the normalisations of a cell, in the order of the structure in C."""
    cross = cell.cross_attention_norm if isinstance(cell, DecoderCell) else None
    return cell.self_attention_norm, cross, cell.feed_forward_norm, cell.output_norm


def maps_of(cell: Cell) -> dict[str, Linear]:
    """Return the maps of a cell by their names in C, which lack those of the memory."""
    own, forward = cell.self_attention, cell.feed_forward
    maps = {"self_in": own.in_proj, "self_out": own.out_proj}
    if isinstance(cell, DecoderCell):
        cross = cell.cross_attention
        maps |= {"cross_in": cross.in_proj, "cross_out": cross.out_proj}
    return {**maps, "expand": forward.expand, "contract": forward.contract}


def _maps(cell: Cell, sizes: Sizes) -> Iterator[tuple[Linear, tuple[int, int]]]:
    """Yield the maps of a cell with the shapes that the kernels assume."""
    d, d_ff, binds = sizes.d_model, sizes.d_ff, sizes.binds
    shapes = {"self_in": ((3 + binds) * d, d), "cross_in": ((1 + binds) * d, d)}
    shapes |= {"self_out": (d, d), "cross_out": (d, d), "expand": (d_ff, d), "contract": (d, d_ff)}
    for name, layer in maps_of(cell).items():
        yield layer, shapes[name]
    if isinstance(cell, DecoderCell):
        memory_proj: Linear = cell.cross_attention.memory_proj
        # The kernel writes the two halves of outputs in int8 by blocks.
        is_known = d % BLOCK == 0 or not isinstance(memory_proj, Int8Linear)
        yield memory_proj, (2 * d, d) if is_known else (0, 0)


def _is_affine(layer: Any, n_out: int, n_in: int) -> bool:
    """Whether a layer is an affine map of this shape, whose weights the kernels can read."""
    if isinstance(layer, Int8Linear):
        numbers = [(layer.scale, (n_out,)), (layer.bias, (n_out,))]
        return _is_read(layer.weight, (n_out, n_in), torch.int8) and all(
            tensor is None or _is_read(tensor, shape) for tensor, shape in numbers
        )
    return (
        isinstance(layer, nn.Linear)
        and layer.bias is not None
        and _is_read(layer.weight, (n_out, n_in))
        and _is_read(layer.bias, (n_out,))
    )


def _is_norm(norm: Any, d_model: int) -> bool:
    return (
        isinstance(norm, nn.LayerNorm)
        and norm.normalized_shape == (d_model,)
        and norm.bias is not None
        and _is_read(norm.weight, (d_model,))
        and _is_read(norm.bias, (d_model,))
    )


def _fits(embedding: Embedding, d_model: int) -> bool:
    """Whether the kernels know an embedding of this size."""
    symbols, role = embedding.symbols, embedding.role_proj
    return (
        isinstance(symbols, nn.Embedding)
        and symbols.embedding_dim == d_model
        and _is_read(symbols.weight, (len(symbols.weight), d_model))
        and (role is None or _is_affine(role, d_model, d_model))
        and _is_read(embedding.positions_like(symbols.weight), (embedding.n_positions, d_model))
    )


def _is_read(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    return is_plain(tensor, dtype) and tensor.is_contiguous() and tensor.shape == shape
