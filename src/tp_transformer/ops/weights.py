"""Which modules the C kernels compute, and their weights as the kernels read them.

The kernels stand for the `forward` of the classes below. They read the fields and the weights of
modules, and support exactly these classes, sizes and types, if nobody observes a module by a hook
or a trace. A method that is replaced on a class or an instance has no effect on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.layout import Layout, Packed
from tp_transformer.model.trace import Traced, submodules
from tp_transformer.ops import library
from tp_transformer.ops.int8 import BLOCK, Int8Linear
from tp_transformer.ops.library import Affine, EmbeddingWeights, Layer, is_plain, runs_as_written

Cell = EncoderCell | DecoderCell
Linear = nn.Linear | Int8Linear

SUPPORTED = {
    *(Embedding, EncoderCell, DecoderCell, SelfAttention, CrossAttention, FeedForward),
    *(HadamardBinding, NoBinding, Int8Linear, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout),
}
WIDTH = 8  # floats of a vector of the kernels
EPSILON = 1e-5  # of all normalisations
PANEL = 16  # outputs of a panel of weights


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
        and all(_is_supported(module, trains=False) for module in submodules(*modules))
        and all(_fit(cells, Sizes.of(stacks[0][0])) for cells in stacks)
        and _fits(embedding, Sizes.of(stacks[0][0]).d_model)
    )


def can_train(cells: Sequence[Cell], *states: tuple[Tensor, Layout | None]) -> bool:
    """Whether the kernels of training compute these cells for all states (1, position, d_model)."""
    is_low = torch.is_autocast_enabled("cpu")
    return (
        all(type(layout) is Packed for _, layout in states)
        and len(cells) > 0
        and torch.is_grad_enabled()
        and runs_as_written()
        and library.load() is not None
        and not has_global_hooks()
        and (not is_low or torch.get_autocast_dtype("cpu") == torch.bfloat16)
        and all(_is_supported(module, trains=True) for module in submodules(*cells))
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


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks that a call would run, or is compiled by torch."""
    forward = module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _is_supported(module: nn.Module, *, trains: bool) -> bool:
    """Whether the kernels know a module by itself, and nobody observes it."""
    if type(module) not in SUPPORTED or has_hooks(module):
        return False
    if isinstance(module, Traced) and module._traces:
        return False
    if module.training and (not trains or _drops(module)):
        return False
    if isinstance(module, nn.Linear):  # training: any d_ff; d_model is a multiple, as d_head is
        return trains or module.in_features % WIDTH == 0
    if isinstance(module, Int8Linear):
        return not trains and module.in_features % WIDTH == 0
    if isinstance(module, nn.LayerNorm):
        return module.eps == EPSILON
    return not isinstance(module, nn.Embedding) or module.max_norm is None


def _drops(module: nn.Module) -> bool:
    """Whether a module sets some numbers to zero in training."""
    if isinstance(module, nn.Dropout):
        return module.p > 0
    return isinstance(module, SelfAttention | CrossAttention) and module.dropout > 0


def _fit(cells: Sequence[Cell], sizes: Sizes) -> bool:
    """Whether all cells are of one kind, and have these sizes in all their parts."""
    return all(
        type(cell) is type(cells[0])
        and Sizes.of(cell) == sizes
        and all(_has(attention, sizes) for attention in _attentions(cell))
        and all(_is_layer(layer, *shape) for layer, shape in _shapes(cell, sizes))
        for cell in cells
    )


def _attentions(cell: Cell) -> Iterator[SelfAttention | CrossAttention]:
    yield cell.self_attention
    if isinstance(cell, DecoderCell):
        yield cell.cross_attention


def _has(attention: SelfAttention | CrossAttention, sizes: Sizes) -> bool:
    """Whether an attention has the heads and the binding of the others."""
    binding = attention.binding
    return (
        attention.n_heads == sizes.n_heads
        and binding.d_head == sizes.d_head
        and sizes.d_head % WIDTH == 0
        and isinstance(binding, HadamardBinding) == sizes.binds
        and not binding.binds_values
        and attention.role_proj is None
        and ("role" in attention.names) == sizes.binds
    )


def norms_of(cell: Cell) -> tuple[nn.LayerNorm | None, ...]:
    """Return the normalisations of a cell, in the order of the structure in C."""
    cross = cell.cross_attention_norm if isinstance(cell, DecoderCell) else None
    return cell.self_attention_norm, cross, cell.feed_forward_norm, cell.output_norm


def maps_of(cell: Cell) -> dict[str, Linear]:
    """Return the maps of a cell by their names in C, which lack those of the memory."""
    attention, forward = cell.self_attention, cell.feed_forward
    maps = {"self_in": attention.in_proj, "self_out": attention.out_proj}
    if isinstance(cell, DecoderCell):
        cross = cell.cross_attention
        maps |= {"cross_in": cross.in_proj, "cross_out": cross.out_proj}
    return {**maps, "expand": forward.expand, "contract": forward.contract}


def _shapes(cell: Cell, sizes: Sizes) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield the layers of a cell with the shapes of the weights that the kernels assume."""
    d, d_ff, binds = sizes.d_model, sizes.d_ff, sizes.binds
    yield from ((norm, (d,)) for norm in norms_of(cell) if norm is not None)
    shapes = {"self_in": ((3 + binds) * d, d), "cross_in": ((1 + binds) * d, d)}
    shapes |= {"self_out": (d, d), "cross_out": (d, d), "expand": (d_ff, d), "contract": (d, d_ff)}
    yield from ((layer, shapes[name]) for name, layer in maps_of(cell).items())
    if isinstance(cell, DecoderCell):
        memory_proj: Linear = cell.cross_attention.memory_proj
        # The kernel writes the two halves of outputs in int8 by blocks.
        is_known = d % BLOCK == 0 or not isinstance(memory_proj, Int8Linear)
        yield memory_proj, (2 * d, d) if is_known else (0, 0)


def _is_layer(layer: Any, *shape: int) -> bool:
    """Whether a layer is a map or a normalisation of this shape, whose weights can be read."""
    if isinstance(layer, Int8Linear):
        scales = [layer.scale] if layer.bias is None else [layer.scale, layer.bias]
        is_read = _is_read(layer.weight, shape, torch.int8)
        return is_read and all(_is_read(scale, shape[:1]) for scale in scales)
    kind = nn.LayerNorm if len(shape) == 1 else nn.Linear
    return (
        isinstance(layer, kind)
        and (kind is nn.Linear or layer.normalized_shape == shape)
        and layer.bias is not None
        and _is_read(layer.weight, shape)
        and _is_read(layer.bias, shape[:1])
    )


def _fits(embedding: Embedding, d_model: int) -> bool:
    """Whether the kernels know an embedding of this size."""
    symbols, role = embedding.symbols, embedding.role_proj
    return (
        isinstance(symbols, nn.Embedding)
        and symbols.embedding_dim == d_model
        and _is_read(symbols.weight, (len(symbols.weight), d_model))
        and (role is None or _is_layer(role, d_model, d_model))
        and _is_read(embedding.positions_like(symbols.weight), (embedding.n_positions, d_model))
    )


def _is_read(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    return is_plain(tensor, dtype) and tensor.is_contiguous() and tensor.shape == shape


class Stack:
    """The weights of an embedding and of cells that the kernels support."""

    def __init__(self, embedding: Embedding, cells: Sequence[Cell]) -> None:
        self.embedding, self.sizes, self.n_layers = embedding, Sizes.of(cells[0]), len(cells)
        self.n_vocab = len(embedding.symbols.weight)
        # References to the memory of the weights, which the kernels may be reading while another
        # thread casts or moves the model; and the panels.
        self._kept: list[Tensor] = []
        positions = embedding.positions_like(embedding.symbols.weight)
        self.weights = EmbeddingWeights(
            Affine() if embedding.role_proj is None else self._affine(embedding.role_proj),
            self._address(embedding.symbols.weight),
            self._address(positions),
        )
        self.layers = (Layer * len(cells))(*map(self._layer, cells))
        memory_maps = [
            cell.cross_attention.memory_proj for cell in cells if isinstance(cell, DecoderCell)
        ]
        self.memory_maps = (Affine * len(memory_maps))(*map(self._affine, memory_maps))
        self.head_maps = self.memory_maps  # with panels of each head, after `with_panels`
        self.has_panels = False
        maps = [layer for cell in cells for layer in maps_of(cell).values()]
        self.is_float = not any(isinstance(layer, Int8Linear) for layer in (*maps, *memory_maps))

    def with_panels(self) -> "Stack":
        """Return the stack with weights packed into panels; itself if it has them or is in int8.

        The panels do not follow later changes of the weights.
        """
        if self.has_panels or not self.is_float:
            return self
        stack = object.__new__(Stack)
        vars(stack).update(vars(self), has_panels=True, _kept=[*self._kept])
        stack.layers = type(self.layers).from_buffer_copy(self.layers)
        stack.head_maps = type(self.memory_maps).from_buffer_copy(self.memory_maps)
        d, d_ff, d_head = self.sizes.d_model, self.sizes.d_ff, self.sizes.d_head
        binds = int(self.sizes.binds)
        size = sum(_whole_panels(n * d) for n in (3 + binds, 1 + binds, 1, 1)) * d
        size += _whole_panels(d_ff) * d + _whole_panels(d) * d_ff
        stack._pack("pack_layers", (d, d_ff, binds), size, stack.layers)
        if len(stack.head_maps):
            size = self.sizes.n_heads * (_whole_panels(d) * d_head + _whole_panels(d_head) * d)
            stack._pack("pack_heads", (d, d_head), size, stack.head_maps)
        return stack

    def _pack(self, kernel: str, sizes: tuple[int, ...], size: int, maps: Any) -> None:
        """Give the maps of all layers their panels, of `size` floats each layer."""
        panels = torch.empty(self.n_layers * size, dtype=torch.float32, device="cpu")
        n_threads = torch.get_num_threads()
        library.call(kernel, self.n_layers, *sizes, size, n_threads, maps, panels)
        self._kept.append(panels)

    def _layer(self, cell: Cell) -> Layer:
        norms = (Affine() if norm is None else self._affine(norm) for norm in norms_of(cell))
        maps = {name: self._affine(layer) for name, layer in maps_of(cell).items()}
        return Layer(norms=(Affine * 4)(*norms), **maps)

    def _affine(self, layer: Linear | nn.LayerNorm) -> Affine:
        if isinstance(layer, Int8Linear):
            return Affine(int8=self._address(layer.packed))
        assert layer.bias is not None  # noqa: S101, for the type checker
        return Affine(self._address(layer.weight), self._address(layer.bias))

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach())
        return tensor.data_ptr()


def _whole_panels(n_outputs: int) -> int:
    """Return a number of outputs, rounded up to whole panels."""
    return -(-n_outputs // PANEL) * PANEL


class ModuleState:
    """The state of modules, to notice that anything but the numbers of weights has changed.

    A comparison takes a fraction of the time of a check of each field.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = list(modules)
        self._all = submodules(*modules)
        self._int8 = [each for each in self._all if isinstance(each, Int8Linear)]
        self._packed = [layer.packed for layer in self._int8]
        self._types = [*map(type, self._all)]
        self._fields = [{**vars(each)} for each in self._all]
        # Parameters, submodules and hooks.
        dicts = [x for values in self._fields for x in values.values() if isinstance(x, dict)]
        self._dicts, self._contents = dicts, [{**each} for each in dicts]
        self._tensors = [
            tensor
            for module in self._all
            for tensor in module._parameters.values()
            if tensor is not None
        ]
        self._memory = _memory(self._tensors)

    def is_current(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are the modules, and nothing has been set, added, removed or moved."""
        try:
            # Comparisons of containers, which start with identity, are faster than loops.
            return (
                list(modules) == self._modules
                and [*map(type, self._all)] == self._types
                and [*map(vars, self._all)] == self._fields
                and self._dicts == self._contents
                and _memory(self._tensors) == self._memory
                and all(a.packed is b for a, b in zip(self._int8, self._packed, strict=True))
            )
        except (RuntimeError, TypeError, ValueError):
            return False  # a tensor or an array was replaced: their equality is not a truth value


_FORM = attrgetter("dtype", "shape", "is_cpu")


def _memory(tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
    """Return types, addresses and shapes; lists of each are faster than one list of tuples."""
    return (
        [*map(type, tensors)],
        [*map(Tensor.data_ptr, tensors)],
        [*map(Tensor.is_contiguous, tensors)],
        [*map(_FORM, tensors)],
    )
