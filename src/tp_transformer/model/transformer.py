"""The Transformer and the TP-Transformer: one model whose attention has a role or has none."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn

from tp_transformer.data.batch import Packed
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.model.attention import Attention
from tp_transformer.model.base import Model
from tp_transformer.model.binding import check_binding
from tp_transformer.model.cache import KeyValueCache
from tp_transformer.model.grouped import Plans
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.masks import causal_mask
from tp_transformer.model.stepping import Stepper, steppers
from tp_transformer.model.trace import is_traced
from tp_transformer.ranges import Depth, ShareBelowOne, Size, check_fields

# Source positions, padding included, that `encode` reads at a time where it may. Few rows of like
# lengths need little padding and fit into a processor's cache: 64 random questions take 0.43 times
# as long as all at once at the paper's size, with half or twice as many positions 0.45 and 0.53.
READ_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of a Transformer; as it stands, the paper's TP-Transformer.

    Attributes:
        d_model: size of a cell's state
        d_ff: size of the feed-forward layer
        n_heads: attention heads, which share d_model evenly
        n_layers: cells in the encoder, and again in the decoder
        n_vocab: rows of the embedding
        n_positions: longest sequence, start and end symbols included
        binding: how a filler and a role become one vector; none is plain attention
        rank: rank of the low-rank binding
        embedding_binding: whether symbols with their positions are bound to roles as well
        initialisation: paper draws every matrix Xavier-uniformly; authors leaves TP-attention's as
            nn.Linear draws them, as the published code does
        dropout: of embeddings, attention weights and the output of every sub-layer
    """

    d_model: Size = 512
    d_ff: Size = 2048
    n_heads: Size = 8
    n_layers: Depth = 6
    n_vocab: Size = 72
    n_positions: Size = 200
    binding: Literal["none", "hadamard", "tensor", "low-rank", "convolution"] = "hadamard"
    rank: Size | None = None
    embedding_binding: bool = True
    initialisation: Literal["paper", "authors"] = "paper"
    dropout: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_model % self.n_heads:
            raise SettingsError(
                f"n_heads must divide d_model evenly, and {self.n_heads} does not {self.d_model}"
            )
        if self.initialisation not in ("paper", "authors"):
            raise SettingsError(f"initialisation is paper or authors, not {self.initialisation!r}")
        check_binding(self.binding, self.rank)

    @property
    def least_numbers(self) -> int:
        """A lower bound of how many numbers the model holds: its large matrices and its positions.

        A cell of the encoder has one attention layer, and one of the decoder two.
        """
        per_head = {"tensor": (self.d_model // self.n_heads) ** 2, "low-rank": self.rank or 0}
        n_bound = self.n_heads * per_head.get(self.binding, self.d_model // self.n_heads)
        attention = self.d_model * (3 * self.d_model + n_bound)
        feed_forward = 2 * self.d_model * self.d_ff
        embedding = self.d_model * (self.n_vocab + self.n_positions)
        return self.n_layers * (3 * attention + 2 * feed_forward) + embedding


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the questions."""

    state: Tensor  # (batch, source, d_model)
    mask: Tensor  # (batch, 1, 1, source): True where a question has a symbol


@dataclass
class DecoderState:
    """What the decoder keeps between steps, layer by layer."""

    source_mask: Tensor | None
    keys_values: list[tuple[Tensor, Tensor]]  # of the source, each (batch, head, source, d_head)
    caches: list[KeyValueCache] | None  # of the target so far; None when it is decoded at once
    steppers: list[Stepper] = field(default_factory=list)  # where there is a short way for a step

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Go on with these rows, and with these questions or with all of them."""
        for cache in self.caches or ():
            cache.select(rows)
        if questions is not None:
            if self.source_mask is not None:
                self.source_mask = self.source_mask.index_select(0, questions)
            self.keys_values = [
                (key.index_select(0, questions), value.index_select(0, questions))
                for key, value in self.keys_values
            ]


class Transformer(Model[TransformerConfig, Memory, DecoderState]):
    """Encoder, decoder, one embedding for both and for the output (sections 2.1 to 2.3)."""

    architecture = "transformer"
    can_pack = True

    def __init__(self, config: TransformerConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(config, config.n_vocab, vocabulary or Vocabulary())
        self.n_positions = config.n_positions
        self.embedding = Embedding(
            config.n_vocab,
            config.d_model,
            n_positions=config.n_positions,
            binding=config.embedding_binding,
            dropout=config.dropout,
        )
        names = ("d_model", "d_ff", "n_heads", "binding", "rank", "dropout")
        cell = {name: getattr(config, name) for name in names}
        self.encoder = nn.ModuleList(EncoderCell(**cell) for _ in range(config.n_layers))
        self.decoder = nn.ModuleList(DecoderCell(**cell) for _ in range(config.n_layers))
        self.initialise()

    def initialise(self) -> None:
        """Draw the initial weights; biases stay as nn.Linear draws them (section 4.1)."""
        drawn: tuple[type[Embedding | FeedForward | Attention], ...] = (Embedding, FeedForward)
        if self.config.initialisation == "paper" or self.config.binding == "none":
            drawn += (Attention,)
        for module in self.modules():
            if isinstance(module, drawn):
                module.initialise()

    def points(self) -> tuple[str, ...]:
        """The embedded source and the embedded target."""
        return ("embedding", "decoder.embedding")

    def encode(self, source: Tensor) -> Memory:
        """Read questions, as padded ids (batch, source)."""
        mask = (source != self.vocabulary.pad)[:, None, None, :]
        if source.numel() > READ_AT_ONCE and source.device.type == "cpu" and self._only_reads():
            return Memory(self._encoded_in_parts(source, mask), mask)
        return Memory(self._encoded(source, mask), mask)

    def _encoded(self, source: Tensor, mask: Tensor) -> Tensor:
        state = self.point("embedding", self.embedding(source))
        for cell in self.encoder:
            state = cell(state, mask)
        return state

    def _encoded_in_parts(self, source: Tensor, mask: Tensor) -> Tensor:
        """The same for a few rows at a time, each part only as wide as its longest row."""
        lengths = mask[:, 0, 0].sum(dim=1)
        state = self.embedding.symbols.weight.new_zeros(*source.shape, self.config.d_model)
        n_rows = max(READ_AT_ONCE // source.shape[1], 1)
        for start in range(0, len(source), n_rows):
            rows = slice(start, start + n_rows)
            width = int(lengths[rows].max())
            state[rows, :width] = self._encoded(source[rows, :width], mask[rows, ..., :width])
        return state

    def _only_reads(self) -> bool:
        """Whether nobody looks at what happens in between."""
        return not torch.is_grad_enabled() and not is_traced(self)

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """The scores of every symbol after each position of `target`: (batch, target, n_vocab)."""
        return self._advance(target, self._remember(memory, caches=None))

    def scores_packed(self, packed: Packed) -> Tensor:
        """The scores of every symbol after each target position: (1, position, n_vocab)."""
        plans = Plans(packed, self.config.n_heads)
        memory = self.embedding(packed.source, position=packed.source_position)
        for cell in self.encoder:
            memory = cell(memory, plans.encoder)
        hidden = self.embedding(packed.target_input, position=packed.target_position)
        for cell in cast(Iterable[DecoderCell], self.decoder):
            key_value = cell.cross_attention.memory_proj(memory)
            hidden = cell(hidden, plans.decoder, (key_value,), plans.cross)
        return self.embedding.logits(hidden)

    def compile_layers(self) -> None:
        """Have torch compile the cells, all but the attention of packed batches.

        That has as many products as there are lengths, which are others in every batch.
        """
        for cell in (*self.encoder, *self.decoder):
            for attention in cell.modules():
                if isinstance(attention, Attention):
                    packed = torch.compiler.disable(attention.attend_packed)  # type: ignore[no-untyped-call]
                    attention.attend_packed = packed  # type: ignore[method-assign]
            cell.compile(dynamic=True)

    def begin(self, memory: Memory, max_length: int) -> DecoderState:
        """The state before the first of at most `max_length` steps."""
        state = self._remember(memory, [KeyValueCache(max_length) for _ in self.decoder])
        state.steppers = steppers(self.decoder)
        if state.steppers:
            # Read at every step: next to each other, and with a mask of numbers, as attention
            # adds it, or with none if there is no padding.
            state.keys_values = [(k.contiguous(), v.contiguous()) for k, v in state.keys_values]
            padding = ~memory.mask
            numbers = torch.zeros_like(padding, dtype=memory.state.dtype)
            masked = numbers.masked_fill(padding, -math.inf)
            state.source_mask = masked if padding.any() else None
        return state

    def step(self, previous: Tensor, state: DecoderState) -> Tensor:
        """The scores (batch, n_vocab) of the next symbol, after one more `previous` (batch)."""
        if not state.steppers:
            return self._advance(previous[:, None], state)[:, 0]
        caches = state.caches or []
        hidden = self.embedding(previous[:, None], caches[0].length)[:, 0]
        for stepper, cache, (key, value) in zip(
            state.steppers, caches, state.keys_values, strict=True
        ):
            hidden = stepper(hidden, cache, key, value, state.source_mask)
        return self.embedding.logits(hidden)

    def _remember(self, memory: Memory, caches: list[KeyValueCache] | None) -> DecoderState:
        cells = cast(Iterable[DecoderCell], self.decoder)
        keys_values = [cell.cross_attention.remember(memory.state) for cell in cells]
        return DecoderState(memory.mask, keys_values, caches)

    def _advance(self, target: Tensor, state: DecoderState) -> Tensor:
        """The scores after each of the next positions of the target."""
        offset = state.caches[0].length if state.caches else 0
        n_new = target.shape[1]
        hidden = self.point("decoder.embedding", self.embedding(target, offset))
        # A single last position may look back on everything: no mask.
        mask = causal_mask(n_new, offset + n_new, target.device) if n_new > 1 else None
        for layer, cell in enumerate(self.decoder):
            cache = state.caches[layer] if state.caches else None
            hidden = cell(hidden, mask, state.keys_values[layer], state.source_mask, cache)
        return self.embedding.logits(hidden)
