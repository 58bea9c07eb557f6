"""All cells of an encoder or a decoder as one differentiable function, for training on a CPU.

The function computes what the cells compute, for packed rows: products are those of PyTorch, and C
kernels compute attention and everything between two products in one pass over the states. Sums with
the residual stream, normalisations and their casts to bfloat16 are then one operation, and so are
their gradients. Keys and values of the source are one product for all cells of the decoder.

As in `fused`, cells that are observed or changed in any way are not computed here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.fused import (
    KINDS,
    attention_backward,
    attention_forward,
    check_shapes,
)
from tp_transformer.data.layout.packed import Packed
from tp_transformer.data.vocabulary import Ids
from tp_transformer.foundation import native
from tp_transformer.model.fused import Cell, is_trainable
from tp_transformer.model.layers import DecoderCell


def trained_cells(
    cells: Sequence[Cell],
    state: Tensor,
    layout: Layout,
    memory: Tensor | None = None,
    memory_layout: Layout | None = None,
) -> Tensor | None:
    """Return the output of the last cell, or None if this function does not support the cells.

    `memory` is the output of the encoder, (1, source, d_model), for cells of a decoder.
    """
    if not is_trainable(cells, state, layout):
        return None
    ends, memory_ends = cast(Packed, layout).offsets, None
    if memory is not None:
        if memory_layout is None or not is_trainable(cells, memory, memory_layout):
            return None
        memory_ends = cast(Packed, memory_layout).offsets
    attention = cells[0].self_attention
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    binds = attention.binding.d_role > 0
    shape = _Shape(attention.n_heads, binds, len(cells), ends, memory_ends, dtype)
    weights = [weight for layer in _layers(cells) for weight in (layer.weight, layer.bias)]
    return _Cells.apply(shape, state, memory, *weights)  # type: ignore[no-untyped-call]


def _layers(cells: Sequence[Cell]) -> Iterator[nn.Linear | nn.LayerNorm]:
    """Yield the layers in the order of computation; the maps of the memory come first."""
    yield from (cell.cross_attention.memory_proj for cell in cells if isinstance(cell, DecoderCell))
    for cell in cells:
        own, forward = cell.self_attention, cell.feed_forward
        yield from (cell.self_attention_norm, own.in_proj, own.out_proj)
        if isinstance(cell, DecoderCell):
            cross = cell.cross_attention
            yield from (cell.cross_attention_norm, cross.in_proj, cross.out_proj)
        yield from (cell.feed_forward_norm, forward.expand, forward.contract, cell.output_norm)


@dataclass(frozen=True)
class _Shape:
    """Sizes and rows of a batch of states."""

    n_heads: int
    binds: bool  # whether attention binds fillers to roles
    n_cells: int
    ends: Ids  # the offsets of the rows
    memory_ends: Ids | None  # those of the source, if the cells are a decoder's
    dtype: torch.dtype  # of products

    def padded(self, states: Tensor) -> Tensor:
        """Return states (position, d_model) with zeros after the last position.

        For products in bfloat16 of sizes that it has not seen, oneDNN compiles code, which takes
        half a millisecond each. So numbers of positions are rounded up, by at most 1/32.
        """
        if self.dtype == torch.float32:
            return states
        unit = 1 << max(0, len(states).bit_length() - 6)
        return F.pad(states, (0, 0, 0, -len(states) % unit))

    def attention(
        self, projected: Tensor, remembered: Tensor | None, d_model: int
    ) -> tuple[list[Tensor], tuple[Ids, Ids], bool]:
        """Return query, key and value, the offsets of their rows, and whether it is causal."""
        parts = self.heads(projected, self.ends, d_model)
        if remembered is None:
            return parts[:3], (self.ends, self.ends), self.memory_ends is not None
        assert self.memory_ends is not None  # noqa: S101, for the type checker
        key_value = self.heads(remembered, self.memory_ends, d_model)
        return [parts[0], *key_value], (self.ends, self.memory_ends), False

    def heads(self, states: Tensor, ends: Ids, d_model: int) -> list[Tensor]:
        """Divide states (position, part * d_model) into parts (1, head, position, d_head)."""
        n_parts, d_head = states.shape[1] // d_model, d_model // self.n_heads
        parts = states[: ends[-1]].view(1, int(ends[-1]), n_parts, self.n_heads, d_head)
        return [part.transpose(1, 2) for part in parts.unbind(2)]


class _Cells(torch.autograd.Function):
    """The forward and the backward pass of all cells."""

    @staticmethod
    def forward(
        ctx: Any, shape: _Shape, state: Tensor, memory: Tensor | None, *weights: Tensor
    ) -> Tensor:
        run = _Forward(shape, weights)
        of_memory = None if memory is None else shape.padded(memory[0])
        output = run.cells(shape.padded(state[0]), of_memory)
        ctx.shape = shape
        ctx.save_for_backward(*run.tape)
        return output[None, : state.shape[1]]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shape = ctx.shape
        run = _Backward(shape, ctx.saved_tensors)
        d_state, d_memory = run.cells(shape.padded(gradient[0].contiguous()))
        of_memory = None if d_memory is None else d_memory[None, : shape.memory_ends[-1]]
        return None, d_state[None, : shape.ends[-1]], of_memory, *reversed(run.gradients)


class _Forward:
    """A forward pass, which puts on a tape what the backward pass takes from its end."""

    def __init__(self, shape: _Shape, weights: Sequence[Tensor]) -> None:
        self.shape = shape
        self.tape: list[Tensor] = []
        self._weights = iter(weights)

    def cells(self, state: Tensor, memory: Tensor | None) -> Tensor:
        """Return the output of the last cell for the states (position, d_model) of the first."""
        shape, remembered = self.shape, None
        if memory is not None:
            remembered = self._remember(memory).chunk(shape.n_cells, dim=1)
        for number in range(shape.n_cells):
            state, normal = self._normalise(state, None, shape.dtype)
            added = self._attend(normal, None)
            if remembered is not None:
                state, normal = self._normalise(state, added, shape.dtype)
                added = self._attend(normal, remembered[number])
            state, normal = self._normalise(state, added, shape.dtype)
            added = self._multiply(self._map(normal).relu_())
            state = self._normalise(state, added, torch.float32)[1]
        return state

    def _normalise(
        self, state: Tensor, added: tuple[Tensor, Tensor] | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the states plus an addend with its bias, and that sum normalised in a dtype."""
        weight, bias = next(self._weights), next(self._weights)
        total = state if added is None else torch.empty_like(state)
        normal, stats = torch.empty_like(state, dtype=dtype), state.new_empty(len(state), 2)
        kinds = KINDS[self.shape.dtype], KINDS[dtype]
        native.call(
            "normalise_forward",
            native.integers([*state.shape, *kinds, torch.get_num_threads()]),
            *(state, *(added or (None, None)), weight, bias, total, normal, stats),
        )
        self.tape += [total, stats, weight]
        return total, normal

    def _map(self, states: Tensor) -> Tensor:
        """Apply the next affine map."""
        weight, bias = (next(self._weights).to(self.shape.dtype) for _ in range(2))
        self.tape += [states, weight]
        return torch.addmm(bias, states, weight.t())

    def _multiply(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product of states and the next matrix, and its bias for `_normalise`."""
        weight, bias = next(self._weights).to(self.shape.dtype), next(self._weights)
        self.tape += [states, weight]
        return states @ weight.t(), bias

    def _remember(self, memory: Tensor) -> Tensor:
        """Return the keys and values of all cells: (source, cell * 2 * d_model)."""
        maps = [next(self._weights) for _ in range(2 * self.shape.n_cells)]
        weight, bias = (torch.cat(one).to(self.shape.dtype) for one in (maps[::2], maps[1::2]))
        low = memory.to(self.shape.dtype)
        self.tape += [low, weight]
        return torch.addmm(bias, low, weight.t())

    def _attend(self, normal: Tensor, remembered: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend within the rows, or to what is remembered of the source; bind and map fillers."""
        shape, d_model = self.shape, normal.shape[1]
        projected = self._map(normal)
        states, ends, causal = shape.attention(projected, remembered, d_model)
        check_shapes(states, ends)
        filler = torch.empty_like(normal)
        filler[shape.ends[-1] :] = 0  # belongs to no row
        (of_rows,) = shape.heads(filler, shape.ends, d_model)
        log_sum = attention_forward(states, of_rows, ends, causal)
        self.tape += [projected, filler, log_sum]
        if remembered is not None:
            self.tape.append(remembered)
        bound = filler
        if shape.binds:
            bound = torch.empty_like(filler)
            _elementwise_product(filler, projected[:, -d_model:], bound)
        return self._multiply(bound)


class _Backward:
    """A backward pass; `gradients` are those of the weights, in the opposite order."""

    def __init__(self, shape: _Shape, tape: Sequence[Tensor]) -> None:
        self.shape = shape
        self.gradients: list[Tensor] = []
        self._tape = list(tape)
        self._sums = torch.empty(0)  # over positions, of the last gradient: that of a bias

    def cells(self, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the states and of the memory, from that of the output."""
        shape, d_model = self.shape, gradient.shape[1]
        d_remembered: Tensor | None = None
        if shape.memory_ends is not None:
            memory = self._tape[0]
            d_remembered = memory.new_empty(len(memory), 2 * d_model * shape.n_cells)
            d_remembered[shape.memory_ends[-1] :] = 0
        for number in reversed(range(shape.n_cells)):
            d_state, low = self._normalise(gradient, None)
            d_hidden, hidden = self._map(low)
            self._mask(hidden, d_hidden)
            d_state, low = self._normalise(self._map(d_hidden)[0], d_state)
            if d_remembered is not None:
                own = d_remembered.chunk(shape.n_cells, dim=1)[number]
                d_state, low = self._normalise(self._attend(low, own), d_state)
            gradient, _ = self._normalise(self._attend(low, None), d_state)
        return gradient, None if d_remembered is None else self._remember(d_remembered)

    def _normalise(self, gradient: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradient of the input of a normalisation, plus another, in both types."""
        weight, stats, state = (self._tape.pop() for _ in range(3))
        d_state, sums = torch.empty_like(state), state.new_empty(3, len(weight))
        low = None
        if self.shape.dtype != torch.float32:
            low = torch.empty_like(state, dtype=self.shape.dtype)
        sizes = native.integers([*state.shape, KINDS[gradient.dtype], torch.get_num_threads()])
        native.call(
            "normalise_backward",
            sizes,
            *(state, stats, weight, gradient, added, d_state, low, sums),
        )
        d_weight, d_bias, self._sums = sums
        self.gradients += [d_bias, d_weight]
        return d_state, d_state if low is None else low

    def _map(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the input of an affine map, and the input."""
        weight, states = self._tape.pop(), self._tape.pop()
        self.gradients += [self._sums, (gradient.t() @ states).float()]
        return gradient @ weight, states

    def _mask(self, output: Tensor | None, gradient: Tensor) -> None:
        """Sum a gradient over positions; before, set it to 0 where the output of a ReLU is 0."""
        self._sums = gradient.new_empty(gradient.shape[1], dtype=torch.float32)
        sizes = [*gradient.shape, KINDS[gradient.dtype], torch.get_num_threads()]
        native.call("relu_backward", native.integers(sizes), output, gradient, self._sums)

    def _attend(self, gradient: Tensor, d_remembered: Tensor | None) -> Tensor:
        """Return the gradient of the input of an attention; write that of keys and values."""
        shape, d_model = self.shape, gradient.shape[1]
        d_filler, _ = self._map(gradient)
        remembered = None if d_remembered is None else self._tape.pop()
        log_sum, filler, projected = (self._tape.pop() for _ in range(3))
        d_projected = torch.empty_like(projected)
        if shape.binds:
            _elementwise_product(d_filler, filler, d_projected[:, -d_model:])
            _elementwise_product(d_filler, projected[:, -d_model:], d_filler)
        d_projected[shape.ends[-1] :] = 0
        states, ends, causal = shape.attention(projected, remembered, d_model)
        results, _, _ = shape.attention(d_projected, d_remembered, d_model)
        (of_filler,) = shape.heads(d_filler, shape.ends, d_model)
        attention_backward(states, of_filler, log_sum, results, ends, causal)
        self._mask(None, d_projected)
        return self._map(d_projected)[0]

    def _remember(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the memory."""
        self._mask(None, gradient)
        d_memory, _ = self._map(gradient)
        maps = [one.chunk(self.shape.n_cells) for one in (self.gradients.pop(), self._sums)]
        self.gradients[-1:] = [one for pair in zip(*maps, strict=True) for one in pair][::-1]
        return d_memory.float()


def _elementwise_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the product of states (position, d_model), whose vectors are contiguous."""
    strides = [one.stride(0) for one in (left, right, out)]
    sizes = [*left.shape, KINDS[left.dtype], torch.get_num_threads(), *strides]
    native.call("elementwise_product", native.integers(sizes), left, right, out)
