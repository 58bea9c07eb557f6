"""All cells of an encoder or a decoder as one custom operator, for training on a CPU.

The operator computes what the cells compute, for packed rows: products are those of PyTorch, and C
kernels compute attention and everything between two products in one pass over the states. Sums with
the residual stream, normalisations and their casts to bfloat16 are then one operation, and so are
their gradients. Keys and values of the source are one product for all cells of the decoder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.model.layers import DecoderCell, EncoderCell
from tp_transformer.model.layout import Layout, Packed
from tp_transformer.ops import library
from tp_transformer.ops.functions import call_attention, check_rows
from tp_transformer.ops.library import KINDS
from tp_transformer.ops.weights import Cell, can_train


def trained_cells(
    cells: Sequence[Cell],
    state: Tensor,
    layout: Layout,
    memory: Tensor | None = None,
    memory_layout: Layout | None = None,
) -> Tensor | None:
    """Return the output of the last cell, or None if the operator does not support the cells.

    `memory` is the output of the encoder, (1, source, d_model), for cells of a decoder.
    """
    of_memory = [] if memory is None else [(memory, memory_layout)]
    if not can_train(cells, (state, layout), *of_memory):
        return None
    offsets = cast(Packed, layout).offsets
    ends, memory_ends = torch.from_numpy(offsets), None
    if memory is not None:
        memory_offsets = cast(Packed, memory_layout).offsets
        check_rows((offsets, memory_offsets), (state.shape[1], memory.shape[1]))
        memory_ends = torch.from_numpy(memory_offsets)
    is_low = torch.is_autocast_enabled("cpu")
    padding = [_padding(each) if is_low else 0 for each in (state, memory) if each is not None]
    attention = cells[0].self_attention
    weights = [weight for layer in _layers(cells) for weight in (layer.weight, layer.bias)]
    binds = attention.binding.d_role > 0
    output, _ = run_cells(
        state, memory, weights, ends, memory_ends, attention.n_heads, binds, is_low, padding
    )
    return cast(Tensor, output)


def _padding(states: Tensor) -> int:
    """Return the number of positions to add to states (1, position, d_model) in bfloat16.

    For products of sizes that it has not seen, oneDNN compiles code, which takes half a millisecond
    each. So numbers of positions are rounded up, by at most 1/32.
    """
    n_positions = states.shape[1]
    return -n_positions % (1 << max(0, n_positions.bit_length() - 6))


def _layers(cells: Sequence[Cell]) -> Iterator[nn.Linear | nn.LayerNorm]:
    """Yield the layers in the order of computation; the maps of the memory come first."""
    decoder_cells = [cell for cell in cells if isinstance(cell, DecoderCell)]
    yield from (cell.cross_attention.memory_proj for cell in decoder_cells)
    for cell in cells:
        attention, forward = cell.self_attention, cell.feed_forward
        yield from (cell.self_attention_norm, attention.in_proj, attention.out_proj)
        if isinstance(cell, DecoderCell):
            cross = cell.cross_attention
            yield from (cell.cross_attention_norm, cross.in_proj, cross.out_proj)
        yield from (cell.feed_forward_norm, forward.expand, forward.contract, cell.output_norm)


WEIGHTS_OF_CELL = {EncoderCell: 2 * 7, DecoderCell: 2 * 11}  # weights and biases of `_layers`


@torch.library.custom_op("tp_transformer::cells", mutates_args=())
def run_cells(
    state: Tensor,
    memory: Tensor | None,
    weights: list[Tensor],
    ends: Tensor,
    memory_ends: Tensor | None,
    n_heads: int,
    binds: bool,
    is_low: bool,
    padding: list[int],
) -> tuple[Tensor, list[Tensor]]:
    """Return the output of the last cell, and what the backward pass reads.

    Args:
        state: the input of the first cell, (1, position, d_model)
        memory: the output of the encoder, (1, source, d_model), for cells of a decoder
        weights: the weight and the bias of each layer, in the order of `_layers`
        ends: the offsets of the rows
        memory_ends: the offsets of the rows of the source
        n_heads: number of attention heads
        binds: whether attention binds fillers to roles
        is_low: whether products are in bfloat16
        padding: numbers of positions to add to the state and to the memory
    """
    run = _Forward(_Shape(state, memory, weights, ends, memory_ends, n_heads, binds, is_low))
    return run.cells(padding), run.tape


@run_cells.register_fake
def _(
    state: Tensor, memory: Tensor | None, weights: list[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    *sizes, padding = rest
    run = _Forward(_Shape(state, memory, weights, *sizes), is_fake=True)
    return run.cells(padding), run.tape


@torch.library.custom_op("tp_transformer::cells_backward", mutates_args=())
def run_cells_backward(  # noqa: PLR0913, the arguments of the operator
    gradient: Tensor,
    tape: list[Tensor],
    state: Tensor,
    memory: Tensor | None,
    weights: list[Tensor],
    ends: Tensor,
    memory_ends: Tensor | None,
    n_heads: int,
    binds: bool,
    is_low: bool,
    padding: list[int],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the gradients of the state, of the memory (empty without one) and of the weights."""
    shape = _Shape(state, memory, weights, ends, memory_ends, n_heads, binds, is_low)
    return _Backward(shape, tape).cells(gradient, padding)


@run_cells_backward.register_fake
def _(
    gradient: Tensor,
    tape: list[Tensor],
    state: Tensor,
    memory: Tensor | None,
    weights: list[Tensor],
    *rest: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    of_memory = state.new_empty(0) if memory is None else torch.empty_like(memory)
    return torch.empty_like(state), of_memory, [torch.empty_like(weight) for weight in weights]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    state, memory, weights, ends, memory_ends, *ctx.sizes = inputs
    ctx.set_materialize_grads(False)  # those of the tape would be zeros
    ctx.n_weights = len(weights)
    ctx.save_for_backward(state, memory, ends, memory_ends, *weights, *output[1])


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
    state, memory, ends, memory_ends, *rest = ctx.saved_tensors
    weights, tape = rest[: ctx.n_weights], rest[ctx.n_weights :]
    d_state, d_memory, d_weights = run_cells_backward(
        gradient, tape, state, memory, weights, ends, memory_ends, *ctx.sizes
    )
    of_memory = None if memory is None else d_memory
    return d_state, of_memory, d_weights, *[None] * (2 + len(ctx.sizes))


run_cells.register_autograd(_backward, setup_context=_keep)


@dataclass(frozen=True)
class _Shape:
    """The inputs of the operator."""

    state: Tensor
    memory: Tensor | None
    weights: list[Tensor]
    ends: Tensor
    memory_ends: Tensor | None
    n_heads: int
    binds: bool
    is_low: bool

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        kind = EncoderCell if self.memory is None else DecoderCell
        return len(self.weights) // WEIGHTS_OF_CELL[kind]

    @property
    def dtype(self) -> torch.dtype:
        """The type of products."""
        return torch.bfloat16 if self.is_low else torch.float32

    def attention(
        self, projected: Tensor, remembered: Tensor | None
    ) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor], bool]:
        """Return query, key and value, the offsets of their rows, and whether it is causal."""
        query, *others = self.heads(projected, self.state)
        if remembered is None:
            key, value = others[:2]
            ends, causal = (self.ends, self.ends), self.memory is not None
        else:
            assert self.memory is not None  # noqa: S101, for the type checker
            assert self.memory_ends is not None  # noqa: S101
            key, value = self.heads(remembered, self.memory)
            ends, causal = (self.ends, self.memory_ends), False
        return {"query": query, "key": key, "value": value}, ends, causal

    def heads(self, states: Tensor, like: Tensor) -> list[Tensor]:
        """Divide states (position, name * d_model) into tensors (1, head, position, d_head).

        The positions beyond those of `like` (1, position, d_model) are padding.
        """
        _, n_positions, d_model = like.shape
        n_names, d_head = states.shape[1] // d_model, d_model // self.n_heads
        by_name = states[:n_positions].view(1, n_positions, n_names, self.n_heads, d_head)
        return [tensor.transpose(1, 2) for tensor in by_name.unbind(2)]


class _Forward:
    """A forward pass, which puts on a tape what the backward pass takes from its end.

    No tensor of the tape shares memory with an input or another one, which an operator must not
    return.
    """

    def __init__(self, shape: _Shape, *, is_fake: bool = False) -> None:
        self.shape = shape
        self.tape: list[Tensor] = []
        self._weights = iter(shape.weights)
        self._is_fake = is_fake  # then only shapes are computed

    def cells(self, padding: list[int]) -> Tensor:
        """Return the output of the last cell."""
        shape, remembered = self.shape, None
        if shape.memory is not None:
            remembered = self._remember(padded(shape.memory, padding[1])).chunk(shape.n_cells, 1)
        state = padded(shape.state, padding[0])
        for number in range(shape.n_cells):
            state, normal = self._normalise(state, None, shape.dtype)
            added = self._attend(normal, None)
            if remembered is not None:
                state, normal = self._normalise(state, added, shape.dtype)
                added = self._attend(normal, remembered[number])
            state, normal = self._normalise(state, added, shape.dtype)
            added = self._product(self._map(normal).relu_())
            state = self._normalise(state, added, torch.float32)[1]
        return state[None, : shape.state.shape[1]]

    def _normalise(
        self, state: Tensor, added: tuple[Tensor, Tensor] | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the states plus an addend with its bias, and that sum normalised in a dtype."""
        weight, bias = next(self._weights), next(self._weights)
        total = state if added is None else torch.empty_like(state)
        normal = torch.empty_like(state, dtype=dtype)
        stats = state.new_empty(state.shape[0], 2)
        if not self._is_fake:
            kinds = KINDS[self.shape.dtype], KINDS[dtype]
            library.call(
                *("normalise_forward", *state.shape, *kinds, torch.get_num_threads()),
                *(state, *(added or (None, None)), weight, bias, total, normal, stats),
            )
        self.tape += [total, stats]
        return total, normal

    def _low(self, weight: Tensor) -> Tensor:
        """Return a weight in the type of products, which is on the tape if it is another one."""
        if not self.shape.is_low:
            return weight
        self.tape.append(weight.to(torch.bfloat16))
        return self.tape[-1]

    def _map(self, states: Tensor) -> Tensor:
        """Apply the next affine map."""
        self.tape.append(states)
        weight, bias = self._low(next(self._weights)), next(self._weights)
        return torch.addmm(bias.to(weight.dtype), states, weight.t())

    def _product(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product of states and the next matrix, and its bias for `_normalise`."""
        self.tape.append(states)
        return states @ self._low(next(self._weights)).t(), next(self._weights)

    def _remember(self, memory: Tensor) -> Tensor:
        """Return the keys and values of all cells: (source, cell * 2 * d_model)."""
        maps = [next(self._weights) for _ in range(2 * self.shape.n_cells)]
        weight, bias = (torch.cat(each).to(self.shape.dtype) for each in (maps[::2], maps[1::2]))
        low = memory.to(self.shape.dtype)
        remembered = torch.addmm(bias, low, weight.t())
        self.tape += [low, weight, remembered]
        return remembered

    def _attend(self, normal: Tensor, remembered: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend within the rows, or to what is remembered of the source; bind and map fillers."""
        shape, d_model = self.shape, normal.shape[1]
        projected = self._map(normal)
        states, ends, causal = shape.attention(projected, remembered)
        filler = torch.empty_like(normal)
        filler[shape.state.shape[1] :] = 0  # belongs to no row
        (of_rows,) = shape.heads(filler, shape.state)
        log_sum = normal.new_empty(states["query"].shape[1:3], dtype=torch.float32)
        if not self._is_fake:
            call_attention({**states, "filler": of_rows}, log_sum, ends, causal=causal)
        self.tape += [projected, log_sum]
        bound = filler
        if shape.binds:
            self.tape.append(filler)
            bound = torch.empty_like(filler)
            if not self._is_fake:
                _multiply(filler, projected[:, -d_model:], bound)
        return self._product(bound)


class _Backward:
    """A backward pass; `gradients` are those of the weights, in the opposite order."""

    def __init__(self, shape: _Shape, tape: list[Tensor]) -> None:
        self.shape = shape
        self.gradients: list[Tensor] = []
        self._tape, self._weights = list(tape), list(shape.weights)
        self._remembered: tuple[Tensor, ...] = ()
        if shape.memory is not None:
            self._remembered = self._tape.pop(2).chunk(shape.n_cells, dim=1)
        self._sums = torch.empty(0)  # over positions, of the last gradient: that of a bias

    def cells(self, gradient: Tensor, padding: list[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the gradients of the states, the memory and the weights."""
        shape, d_remembered = self.shape, torch.empty(0)
        d_memory = gradient.new_empty(0)
        if shape.memory is not None:
            low = self._tape[0]
            d_remembered = low.new_empty(len(low), 2 * gradient.shape[2] * shape.n_cells)
            d_remembered[shape.memory.shape[1] :] = 0
        gradient = padded(gradient, padding[0])
        of_cells = d_remembered.chunk(shape.n_cells, dim=-1)
        for number in reversed(range(shape.n_cells)):
            d_state, low = self._normalise(gradient, None)
            d_hidden, hidden = self._map(low)
            self._mask(hidden, d_hidden)
            d_state, low = self._normalise(self._map(d_hidden)[0], d_state)
            if shape.memory is not None:
                d_low = self._attend(low, self._remembered[number], of_cells[number])
                d_state, low = self._normalise(d_low, d_state)
            gradient, _ = self._normalise(self._attend(low), d_state)
        if shape.memory is not None:
            d_memory = self._remember(d_remembered)[None, : shape.memory.shape[1]]
        d_state = gradient[None, : shape.state.shape[1]]
        return d_state, d_memory, self.gradients[::-1]

    def _normalise(self, gradient: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradient of the input of a normalisation, plus another, in both types."""
        stats, state = self._tape.pop(), self._tape.pop()
        _, weight = self._weights.pop(), self._weights.pop()
        d_state, sums = torch.empty_like(state), state.new_empty(3, len(weight))
        low = torch.empty_like(state, dtype=torch.bfloat16) if self.shape.is_low else None
        library.call(
            *("normalise_backward", *state.shape, KINDS[gradient.dtype], torch.get_num_threads()),
            *(state, stats, weight, gradient, added, d_state, low, sums),
        )
        d_weight, d_bias, self._sums = sums
        self.gradients += [d_bias.clone(), d_weight.clone()]
        return d_state, d_state if low is None else low

    def _map(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the input of an affine map, and the input."""
        _, weight = self._weights.pop(), self._weights.pop()
        if self.shape.is_low:
            weight = self._tape.pop()
        states = self._tape.pop()
        self.gradients += [self._sums.clone(), (gradient.t() @ states).float()]
        return gradient @ weight, states

    def _mask(self, output: Tensor | None, gradient: Tensor) -> None:
        """Sum a gradient over positions; before, set it to 0 where the output of a ReLU is 0."""
        self._sums = gradient.new_empty(gradient.shape[1], dtype=torch.float32)
        sizes = *gradient.shape, KINDS[gradient.dtype], torch.get_num_threads()
        library.call("relu_backward", *sizes, output, gradient, self._sums)

    def _attend(
        self,
        gradient: Tensor,
        remembered: Tensor | None = None,
        d_remembered: Tensor | None = None,
    ) -> Tensor:
        """Return the gradient of the input of an attention; write that of keys and values."""
        shape, d_model = self.shape, gradient.shape[1]
        d_filler, _ = self._map(gradient)
        filler = self._tape.pop() if shape.binds else d_filler
        log_sum, projected = self._tape.pop(), self._tape.pop()
        d_projected = torch.empty_like(projected)
        if shape.binds:
            _multiply(d_filler, filler, d_projected[:, -d_model:])
            _multiply(d_filler, projected[:, -d_model:], d_filler)
        d_projected[shape.state.shape[1] :] = 0
        states, ends, causal = shape.attention(projected, remembered)
        results, _, _ = shape.attention(d_projected, d_remembered)
        (of_filler,) = shape.heads(d_filler, shape.state)
        gradients = {f"d_{name}": result for name, result in results.items()}
        call_attention({**states, "gradient": of_filler, **gradients}, log_sum, ends, causal=causal)
        self._mask(None, d_projected)
        return self._map(d_projected)[0]

    def _remember(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the memory."""
        weight, low = self._tape.pop(), self._tape.pop()
        self._mask(None, gradient)
        d_weight, n_cells = (gradient.t() @ low).float(), self.shape.n_cells
        pairs = zip(d_weight.chunk(n_cells), self._sums.chunk(n_cells), strict=True)
        self.gradients += [each.clone() for pair in pairs for each in pair][::-1]
        return (gradient @ weight).float()


def padded(states: Tensor, n: int) -> Tensor:
    """Return a copy of states (1, position, d_model) with `n` positions of zeros at the end."""
    return F.pad(states[0], (0, 0, 0, n)).contiguous()


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the elementwise product of states (position, d_model), whose vectors are contiguous."""
    sizes = *left.shape, KINDS[left.dtype], torch.get_num_threads()
    strides = [each.stride(0) for each in (left, right, out)]
    library.call("elementwise_product", *sizes, *strides, left, right, out)
