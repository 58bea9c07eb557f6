"""The decoding steps of a Transformer by C kernels, and greedy search."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import CPU
from tp_transformer.foundation import native
from tp_transformer.model.cache import FIRST_ROOM
from tp_transformer.model.fused import Known, Memory, is_fusible, packed_ends
from tp_transformer.model.fused_weights import (
    addresses,
    affine,
    is_plain,
    memory_maps,
    pointers,
    sizes_of,
)
from tp_transformer.model.layers import DecoderCell, Embedding

# To choose what steps read of the source: the tokens of an answer, and the number of questions from
# which on a step takes longer than reading its weights from memory. From then on, the decoder's
# weights are also packed into panels.
EXPECTED_STEPS, MANY_QUESTIONS = 16, 16


class FusedState:
    """The state of the decoder between steps of the kernel."""

    def __init__(
        self,
        embedding: Embedding,
        known: Known,
        source: Tensor,
        memory: Tensor | None,
        ends: list[int],
        max_length: int,
    ) -> None:
        self._known = known
        # (layer, key or value, position, head, d_head), or None: then steps read the source
        self._memory, self._source, self._memory_addresses = memory, source, None
        if memory is not None:
            n_bytes = memory.nbytes // (2 * known.n_layers)  # of the keys or the values of a layer
            first, n_arrays = memory.data_ptr(), 2 * known.n_layers
            self._memory_addresses = pointers([first + i * n_bytes for i in range(n_arrays)])
        offsets = np.asarray(ends)
        self._starts = torch.from_numpy(offsets[:-1])
        self._lengths = torch.from_numpy(offsets[1:] - offsets[:-1])
        n_heads, d_head, d_ff, binds = known.sizes
        self._embedding = embedding
        self._position, self._max_length = 0, max_length
        # (layer, key or value, row, room, d_model)
        self._cache = source.new_empty(
            known.n_layers, 2, len(ends) - 1, self._room_after(0), n_heads * d_head
        )
        self._n_vocab = embedding.symbols.num_embeddings
        self._sizes = [known.n_layers, n_heads, d_head, d_ff, self._n_vocab]
        self._last_sizes = [binds, n_heads * d_head, torch.get_num_threads()]

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
        n_running = self._n_rows
        previous = torch.full((n_running,), sos, device=CPU)
        running = torch.arange(n_running, device=CPU)
        tokens = torch.full((n_running, self._max_length), pad, device=CPU)
        logits = self._cache.new_empty(n_running, self._n_vocab)
        while n_running and self._position < self._max_length:
            self._make_room()
            progress = native.integers([n_running, self._position])
            last_sizes = [eos, self._max_length]
            self._call("decoder_greedy", last_sizes, previous, logits, progress, running, tokens)
            n_running, self._position = progress
        return tokens[:, : self._position]

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
        larger = self._room_after(room)
        if self._position == larger:
            raise ValueError(f"the cache has {room} positions")
        shape = list(self._cache.shape)
        shape[3] = larger
        cache = self._cache.new_empty(shape)
        cache[:, :, :, : self._position] = self._cache
        self._cache = cache

    def _room_after(self, room: int) -> int:
        """Return the next larger number of positions of the cache, or the same if it is maximal."""
        return min(self._max_length, max(FIRST_ROOM, 2 * room), self._embedding.n_positions)

    def _call(
        self, kernel: str, last_sizes: list[int], *arguments: Tensor | ctypes.Array[ctypes.c_int64]
    ) -> None:
        sizes = [self._n_rows, len(self._lengths), *self._sizes, self._position]
        native.call(
            kernel,
            native.integers([*sizes, self._cache.shape[3], *self._last_sizes, *last_sizes]),
            self._known.addresses,
            self._memory_addresses,
            self._known.head_addresses,
            self._source,
            self._starts,
            self._lengths,
            self._cache,
            *arguments,
        )


def fused_state(
    embedding: Embedding, known: Known, state: Tensor, layout: Layout, max_length: int
) -> FusedState | None:
    """Return the state before the first step, or None if the kernel does not support the layout.

    `state` is the output of the encoder in `layout`, and `known` has the decoder.
    """
    ends = packed_ends(layout)
    if ends is None or known.maps is None or state.shape[:2] != (1, ends[-1]):
        return None
    if not _is_source(state, known.sizes):
        return None
    return first_state(embedding, known, state, ends, max_length)


def first_state(
    embedding: Embedding, known: Known, state: Tensor, ends: list[int], max_length: int
) -> FusedState:
    """Return the state before the first step, for packed rows that the kernel supports."""
    if len(ends) > MANY_QUESTIONS:
        known = known.with_panels()
    memory = None
    if known.head_addresses is None or not _reads_states(known.sizes, ends, max_length):
        memory = _memory(known.sizes, known.map_addresses, state)
    return FusedState(embedding, known, state, memory, ends, max_length)


def _is_source(state: Tensor, sizes: tuple[int, int, int, int]) -> bool:
    """Whether the kernels can read the output of an encoder (1, source, d_model)."""
    d_model = sizes[0] * sizes[1]
    return is_plain(state) and state.dim() == 3 and len(state) == 1 and state.shape[2] == d_model


def _reads_states(sizes: tuple[int, int, int, int], ends: list[int], max_length: int) -> bool:
    """Whether a greedy search that reads the states of the source takes fewer operations.

    For each layer, keys and values of a source of n positions take 2 n d² multiplications. Without
    them, a step takes 2 d² and 2 n d h more for h heads. Most answers are short. A beam search has
    several rows of a question, and loses some time.
    """
    n_heads, d_head, _, _ = sizes
    d_model, n_questions = n_heads * d_head, len(ends) - 1
    if n_questions < MANY_QUESTIONS:
        return False
    n_positions, n_steps = ends[-1] / n_questions, min(EXPECTED_STEPS, max_length)
    return n_positions * d_model > n_steps * (d_model + n_positions * n_heads)


def fused_memory(cells: Sequence[DecoderCell], state: Tensor) -> Memory | None:
    """Return the keys and values of the source for each cell, or None if that is not supported.

    `state` is the output of the encoder (1, source, d_model). They are contiguous for each cell.
    """
    if not is_fusible(cells) or any(sizes_of(cell) != sizes_of(cells[0]) for cell in cells):
        return None
    maps, sizes = memory_maps(cells), sizes_of(cells[0])
    if maps is None or not _is_source(state, sizes):
        return None
    memory = _memory(sizes, addresses(maps), state)
    return [(key.transpose(0, 1)[None], value.transpose(0, 1)[None]) for key, value in memory]


def _memory(sizes: tuple[int, int, int, int], maps: Any, state: Tensor) -> Tensor:
    """Return the keys and values (layer, key or value, position, head, d_head) by maps."""
    n_heads, d_head, _, _ = sizes
    n_layers, n_positions = len(maps) // len(affine(None)), state.shape[1]
    memory = state.new_empty(n_layers, 2, n_positions, n_heads, d_head)
    native.call(
        "memory_forward",
        native.integers([n_positions, n_layers, n_heads * d_head, torch.get_num_threads()]),
        maps,
        state,
        memory,
    )
    return memory
