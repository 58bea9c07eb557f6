"""Inference with a Transformer by C kernels alone.

A step of a single question consists of hundreds of small operations, whose start takes longer than
their arithmetic; an engine makes a few calls instead. It computes what the model computes, in
float32 or int8 on a CPU, for packed rows.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.model.batch import Batch
from tp_transformer.model.layout import CPU, Layout, Packed, Padded
from tp_transformer.model.search import FIRST_ROOM
from tp_transformer.ops import library
from tp_transformer.ops.functions import check_rows
from tp_transformer.ops.library import CellsCall, Step, runs_as_written
from tp_transformer.ops.weights import (
    ModuleState,
    Sizes,
    Stack,
    can_infer,
    has_global_hooks,
    has_hooks,
)

# To choose what steps read of the source: the tokens of an answer, and the number of questions from
# which on a step takes longer than reading its weights from memory. From then on, the decoder's
# weights are also packed into panels.
EXPECTED_STEPS, MANY_QUESTIONS = 16, 16

Memory = tuple[Tensor, Ids]  # states of the source (1, position, d_model), and offsets of rows


def engine_for(model: Any) -> "Engine | None":
    """Return the engine of a model as it is now, or None if PyTorch has to run its modules.

    It has the interface that searches need, and may be called with a batch, like the model. The
    model must not change while it is used.
    """
    # A subclass, which may compute something else, inherits the attribute but does not define it.
    if "engine" not in vars(type(model)) or model.engine is None or not _is_inference():
        return None
    if model.training or model._traces or has_hooks(model):
        return None
    modules = [model.embedding, *model.encoder, *model.decoder]
    engine: Engine | None = model.engine if isinstance(model.engine, Engine) else None
    if engine is None or not engine.state.is_current(modules):
        if not can_infer(model.embedding, [*model.encoder], [*model.decoder]):
            return None
        encoder = Stack(model.embedding, [*model.encoder])
        decoder = Stack(model.embedding, [*model.decoder])
        model.engine = engine = Engine(encoder, decoder, model.vocabulary, ModuleState(modules))
    return engine


def _is_inference() -> bool:
    """Whether torch would run modules as the kernels do."""
    return (
        not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and runs_as_written()
        and library.load() is not None
        and not has_global_hooks()
    )


class Engine:
    """Computes what a Transformer computes for packed rows."""

    def __init__(
        self, encoder: Stack, decoder: Stack, vocabulary: Vocabulary, state: ModuleState
    ) -> None:
        self._encoder, self._decoder = encoder, decoder
        self.vocabulary, self.state = vocabulary, state

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (True,)  # a copy or a pickle of the model prepares an engine of its own

    def with_panels(self) -> "Engine":
        """Return an engine whose searches share weights packed into panels.

        Without this, each search packs the encoder one layer at a time, into memory that all layers
        share, which is faster for a single search, and the decoder if there are many questions.
        """
        packed = self._encoder.with_panels(), self._decoder.with_panels()
        return Engine(*packed, self.vocabulary, self.state)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the logits after each position of the targets: (1, position, n_vocab)."""
        source, source_ends = self.encode(batch.source, batch.source_layout)
        ends = _ends_of(batch.target_layout, batch.target_input)
        check_rows((ends, source_ends), (batch.target_input.shape[1], source.shape[1]))
        state = self._embedded(batch.target_input, ends)
        remembered = _remembered(self._decoder, source)
        _run_cells(self._decoder, state, ends, remembered, source_ends)
        return self._decoder.embedding.logits(state)

    def greedy(self, questions: Ragged, max_length: int) -> Tensor:
        """Return the answers of at most `max_length` tokens, as `decoding.greedy` does."""
        ids = torch.from_numpy(np.ascontiguousarray(questions.ids, dtype=np.int64))
        steps = self.begin(self._encoded(ids, questions.offsets), max_length)
        vocabulary = self.vocabulary
        return steps.greedy(vocabulary.sos, vocabulary.eos, vocabulary.pad)

    def encode(self, source: Tensor, layout: Layout | None = None) -> Memory:
        """Encode questions (1, position), which are packed or a single one."""
        return self._encoded(source, _ends_of(layout, source))

    def begin(self, memory: Memory, max_length: int) -> "EngineState":
        """Return the state before the first of at most `max_length` steps."""
        source, ends = memory
        decoder = self._decoder.with_panels() if len(ends) > MANY_QUESTIONS else self._decoder
        remembered = None
        if not decoder.has_panels or not _reads_states(decoder.sizes, ends, max_length):
            remembered = _remembered(decoder, source)
        return EngineState(decoder, source, remembered, ends, max_length)

    def step(self, previous: Tensor, state: "EngineState") -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        return state.step(previous)

    def _encoded(self, ids: Tensor, ends: Ids) -> Memory:
        state = self._embedded(ids, ends)
        _run_cells(self._encoder, state, ends)
        return state, ends

    def _embedded(self, ids: Tensor, ends: Ids) -> Tensor:
        """Return the embedded tokens of packed rows: (1, position, d_model)."""
        stack, ids = self._encoder, ids.to(torch.int64).contiguous()
        if ends[0] or ends[-1] != ids.numel():
            raise ValueError(
                f"rows from {ends[0]} to {ends[-1]} are not those of {ids.numel()} ids"
            )
        stack.embedding.check_length(int(np.diff(ends).max(initial=0)))
        state = torch.empty(1, ids.numel(), stack.sizes.d_model, device=CPU, dtype=torch.float32)
        sizes = len(ends) - 1, stack.sizes.d_model, stack.n_vocab, torch.get_num_threads()
        library.call("embed_forward", *sizes, stack.weights, ends, ids, state)
        return state


def _ends_of(layout: Layout | None, ids: Tensor) -> Ids:
    """Return the offsets of packed rows of ids; a single row is packed."""
    if isinstance(layout, Packed):
        return layout.offsets
    if isinstance(layout, Padded) and len(layout) == 1 and bool(layout.filled.all()):
        return np.array([0, ids.shape[1]])
    raise ValueError("the kernels read packed rows only")


def _run_cells(
    stack: Stack,
    state: Tensor,
    ends: Ids,
    memory: Tensor | None = None,
    memory_ends: Ids | None = None,
) -> None:
    """Run all cells in place: `state` is the input, and becomes the output.

    Attention is causal if there is a memory, of the decoder's keys and values of the source.
    """
    sizes, n_threads = stack.sizes, torch.get_num_threads()
    call = CellsCall(
        *(len(ends) - 1, stack.n_layers, sizes.n_heads, sizes.d_head, sizes.d_ff, sizes.binds),
        *(n_threads, ctypes.addressof(stack.layers), _address(memory), _address(ends)),
        *(_address(memory_ends), _address(state)),
    )
    library.call("cells_forward", call)


def _remembered(stack: Stack, source: Tensor) -> Tensor:
    """Return the keys and values of the source: (layer, key or value, position, d_model)."""
    n_positions, d_model = source.shape[1], stack.sizes.d_model
    memory = source.new_empty(stack.n_layers, 2, n_positions, d_model)
    sizes = n_positions, stack.n_layers, d_model, torch.get_num_threads()
    library.call("memory_forward", *sizes, stack.memory_maps, source, memory)
    return memory


def _reads_states(sizes: Sizes, ends: Ids, max_length: int) -> bool:
    """Whether a greedy search that reads the states of the source takes fewer operations.

    For each layer, keys and values of a source of n positions take 2 n d² multiplications. Without
    them, a step takes 2 d² and 2 n d h more for h heads. Most answers are short. A beam search has
    several rows of a question, and loses some time.
    """
    n_questions = len(ends) - 1
    if n_questions < MANY_QUESTIONS:
        return False
    n_positions, n_steps = float(ends[-1]) / n_questions, min(EXPECTED_STEPS, max_length)
    return n_positions * sizes.d_model > n_steps * (sizes.d_model + n_positions * sizes.n_heads)


def _address(numbers: Tensor | Ids | None) -> int | None:
    if isinstance(numbers, np.ndarray):
        return numbers.ctypes.data
    return None if numbers is None else numbers.data_ptr()


class EngineState:
    """The state of the decoder between steps."""

    def __init__(
        self, stack: Stack, source: Tensor, memory: Tensor | None, ends: Ids, max_length: int
    ) -> None:
        self._stack, self._source, self._memory = stack, source, memory
        self._starts, self._lengths = map(torch.from_numpy, (ends[:-1], np.diff(ends)))
        self._max_length, self._position = max_length, 0
        n_rows, d_model = len(ends) - 1, stack.sizes.d_model
        # (layer, key or value, row, room, d_model)
        self._cache = source.new_empty(stack.n_layers, 2, n_rows, self._room_after(0), d_model)

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows, and these questions or all of them."""
        self._cache = self._cache.index_select(2, rows)
        if questions is not None:
            self._starts, self._lengths = self._starts[questions], self._lengths[questions]

    def step(self, previous: Tensor) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        if previous.shape != self._cache.shape[2:3]:
            raise ValueError(f"the state has {self._n_rows} rows, not {len(previous)}")
        previous = previous.to(torch.int64).contiguous()
        logits = self._cache.new_empty(len(previous), self._stack.n_vocab)
        library.call("decoder_step", self._step(previous, logits))
        self._position += 1
        return logits

    def greedy(self, sos: int, eos: int, pad: int) -> Tensor:
        """Return the answers by greedy search, as `decoding.greedy` does."""
        n_rows = n_running = self._n_rows
        previous = torch.full((n_rows,), sos, device=CPU)
        running = torch.arange(n_rows, device=CPU)
        tokens = torch.full((n_rows, self._max_length), pad, device=CPU)
        logits = self._cache.new_empty(n_rows, self._stack.n_vocab)
        while n_running and self._position < self._max_length:
            step = self._step(previous, logits)
            step.n_rows = n_running
            library.call("decoder_greedy", step, eos, self._max_length, previous, running, tokens)
            n_running, self._position = step.n_rows, step.position
        return tokens[:, : self._position]

    @property
    def _n_rows(self) -> int:
        return self._cache.shape[2]

    def _step(self, previous: Tensor, logits: Tensor) -> Step:
        """Return the arguments of a step, for which the cache has room."""
        self._make_room()
        stack, sizes, source = self._stack, self._stack.sizes, self._source
        return Step(
            n_rows=self._n_rows,
            n_questions=len(self._lengths),
            n_layers=stack.n_layers,
            n_heads=sizes.n_heads,
            d_head=sizes.d_head,
            d_ff=sizes.d_ff,
            n_vocab=stack.n_vocab,
            position=self._position,
            room=self._cache.shape[3],
            binds=sizes.binds,
            n_source=source.shape[1],
            n_threads=torch.get_num_threads(),
            embedding=ctypes.addressof(stack.weights),
            layers=ctypes.addressof(stack.layers),
            memory=_address(self._memory),
            maps=ctypes.addressof(stack.head_maps),
            source=_address(source),
            starts=_address(self._starts),
            lengths=_address(self._lengths),
            cache_rows=self._n_rows,
            cache=_address(self._cache),
            previous=_address(previous),
            logits=_address(logits),
        )

    def _make_room(self) -> None:
        """Double the cache if it is full; it starts small, because most answers are short."""
        self._stack.embedding.check_length(self._position + 1)
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
        return min(self._max_length, max(FIRST_ROOM, 2 * room), self._stack.embedding.n_positions)
