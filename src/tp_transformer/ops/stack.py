"""A stack of cells with its embedding, as the C kernels read it."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.model.layers import DecoderCell, Embedding
from tp_transformer.model.trace import parts
from tp_transformer.ops import library
from tp_transformer.ops.int8 import Int8Linear
from tp_transformer.ops.library import Affine, EmbeddingWeights, Layer
from tp_transformer.ops.supported import Cell, Linear, Sizes, maps_of, norms_of

PANEL = 16  # outputs of a panel of weights


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
        self._parts = [part for module in modules for part in parts(module)]
        self._int8 = [part for part in self._parts if isinstance(part, Int8Linear)]
        self._packed = [layer.packed for layer in self._int8]
        self._types = [*map(type, self._parts)]
        self._fields = [{**vars(part)} for part in self._parts]
        # Parameters, submodules and hooks.
        dicts = [each for own in self._fields for each in own.values() if isinstance(each, dict)]
        self._dicts, self._contents = dicts, [{**each} for each in dicts]
        self._tensors = [
            each for part in self._parts for each in part._parameters.values() if each is not None
        ]
        self._memory = _memory(self._tensors)

    def is_current(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are the modules, and nothing has been set, added, removed or moved."""
        try:
            # Comparisons of containers, which start with identity, are faster than loops.
            return (
                list(modules) == self._modules
                and [*map(type, self._parts)] == self._types
                and [*map(vars, self._parts)] == self._fields
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
