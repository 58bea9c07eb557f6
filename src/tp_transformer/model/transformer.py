"""The Transformer and the TP-Transformer, which differ in the binding of their attention."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.model.attention import Attention
from tp_transformer.model.base import ARCHITECTURES, Model
from tp_transformer.model.batch import Batch
from tp_transformer.model.binding import BINDINGS, Binding
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.layout import Layout, Padded, PaddedPattern
from tp_transformer.model.loss import Loss
from tp_transformer.model.search import DecoderState, KeyValueCache, memory_mask
from tp_transformer.model.trace import SOURCE, TARGET, Trace
from tp_transformer.ops.cells import trained_cells

EVERYWHERE = PaddedPattern()  # the last position may attend to all before it


@dataclass(frozen=True)
class Memory:
    """The output of the encoder."""

    state: Tensor  # (batch, source, d_model)
    layout: Layout


@ARCHITECTURES.register("transformer")
class Transformer(Model[TransformerConfig, Memory, DecoderState]):
    """Encoder, decoder, one embedding for both and for the output (sections 2.1 to 2.3)."""

    config_type = TransformerConfig
    reads_packed = True
    has_int8 = True
    engine = True
    n_positions: int

    def __init__(self, config: TransformerConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(config, vocabulary)
        self.n_positions, self.dropout = config.n_positions, config.dropout
        self.embedding = Embedding(config, self.n_vocab)
        self.encoder = nn.ModuleList(EncoderCell(config) for _ in range(config.n_layers))
        self.decoder = nn.ModuleList(DecoderCell(config) for _ in range(config.n_layers))
        self.initialise()

    @classmethod
    def read_config(cls, values: Mapping[str, Any], where: str) -> TransformerConfig:
        """Return the configuration from its fields, which include the options of the binding."""
        fields = dict(values)
        if isinstance(binding := fields.get("binding"), str):
            BINDINGS[binding]  # raises before options of an unknown binding are rejected
        options = {n: fields.pop(n) for n in TransformerConfig.option_types() if n in fields}
        present = {name: value for name, value in options.items() if value is not None}
        if present:
            fields["binding_options"] = present
        return super().read_config(fields, where)

    @classmethod
    def config_values(cls, config: TransformerConfig) -> dict[str, Any]:
        """Return the fields of a configuration, including the options of the binding."""
        values = super().config_values(config)
        options = values.pop("binding_options")
        return {**values, **options}

    def initialise(self) -> None:
        """Initialise the weights; biases have the default of nn.Linear (section 4.1)."""
        kinds: tuple[type[Embedding | FeedForward | Attention], ...] = (Embedding, FeedForward)
        if self.config.initialisation == "paper" or self.config.binding == "none":
            kinds += (Attention,)
        for module in self.modules():
            if isinstance(module, kinds):
                module.initialise()

    def points(self) -> tuple[str, ...]:
        """Return the names of the trace points: the embedded source and the embedded target."""
        return ("embedding", "decoder.embedding")

    def loss(self, batch: Batch, *, label_smoothing: float = 0.0) -> Loss:
        """Return the loss of the answers of a batch; in training, with the bindings' penalty."""
        with self.penalised_roles() as roles:
            loss = super().loss(batch, label_smoothing=label_smoothing)
        return replace(loss, penalty=self.penalty(roles, batch))

    def penalised_roles(self) -> AbstractContextManager[Trace | None]:
        """Record the roles of bindings with a penalty, if there are any in training."""
        names = [name for name, _ in self._penalised()] if self.training else []
        return self.trace(*names) if names else nullcontext()

    def penalty(self, roles: Trace | None, batch: Batch) -> Tensor | float:
        """Return the penalty of the roles of a batch.

        That of a row is the mean over its positions, times its number of target tokens, so that the
        gradient does not depend on the division into micro-batches.
        """
        total: Tensor | float = 0.0
        if roles is None:
            return total
        for name, binding in self._penalised():
            if (role := roles.get(name)) is not None:
                side = batch.source_layout if name.startswith("encoder.") else batch.target_layout
                of_rows = side.row_sums(binding.penalty(role)) / side.filled.sum(dim=1)
                total = total + of_rows @ batch.target_layout.filled.sum(dim=1).to(of_rows)
        return total

    def _penalised(self) -> Iterator[tuple[str, Binding]]:
        """Yield the bindings with a penalty, with the names of their roles."""
        for name, module in self.named_modules():
            if isinstance(module, Attention) and module.binding.has_penalty:
                yield f"{name}.role", module.binding

    def encode(self, source: Tensor, layout: Layout | None = None) -> Memory:
        """Encode questions (batch, source), which are padded if no layout is given."""
        layout = Padded.of(source, self.vocabulary.pad) if layout is None else layout
        self.note_tokens(SOURCE, source)
        embedded = self.embedding(source, layout.positions, layout.longest)
        state = self.point("embedding", embedded)
        trained = trained_cells(self.encoder_cells, state, layout)
        if trained is not None:
            return Memory(trained, layout)
        pattern = layout.within()
        for cell in self.encoder_cells:
            state = cell(state, pattern)
        return Memory(state, layout)

    def decode(self, target: Tensor, memory: Memory, layout: Layout | None = None) -> Tensor:
        """Return the logits after each position of `target`: (batch, target, n_vocab)."""
        layout = Padded.of(target, self.vocabulary.pad) if layout is None else layout
        self.note_tokens(TARGET, target)
        embedded = self.embedding(target, layout.positions, layout.longest)
        state = self.point("decoder.embedding", embedded)
        cells = self.decoder_cells
        trained = trained_cells(cells, state, layout, memory.state, memory.layout)
        if trained is not None:
            return self.embedding.logits(trained)
        pattern, memory_pattern = layout.within(causal=True), layout.across(memory.layout)
        for cell in cells:
            key_value = cell.cross_attention.remember(memory.state)
            state = cell(state, pattern, key_value, memory_pattern)
        return self.embedding.logits(state)

    def begin(self, memory: Memory, max_length: int) -> DecoderState:
        """Return the state before the first of at most `max_length` steps."""
        pad, filled = memory.layout.pad_heads, memory.layout.filled
        remembered = [cell.cross_attention.remember(memory.state) for cell in self.decoder_cells]
        return DecoderState(
            [(pad(key), pad(value)) for key, value in remembered],
            None if filled.all() else memory_mask(filled, memory.state.dtype),
            [KeyValueCache(max_length) for _ in self.decoder],
        )

    def step(self, previous: Tensor, state: DecoderState) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        position = state.caches[0].length
        self.note_tokens(TARGET, previous[:, None])
        embedded = self.embedding(
            previous[:, None], slice(position, position + 1), longest=position + 1
        )
        hidden = self.point("decoder.embedding", embedded)
        memory_pattern = PaddedPattern(state.memory_mask)
        stack = zip(self.decoder_cells, state.memory, state.caches, strict=True)
        for cell, memory, cache in stack:
            hidden = cell(hidden, EVERYWHERE, memory, memory_pattern, cache)
        return self.embedding.logits(hidden)[:, 0]

    def compile_layers(self) -> None:
        """Compile the cells with torch, except for the computation of fillers.

        For packed rows, its number of products depends on the lengths in the batch.
        """
        for cell in (*self.encoder, *self.decoder):
            for attention in cell.modules():
                if isinstance(attention, Attention):
                    retrieve = torch.compiler.disable(attention.retrieve)  # type: ignore[no-untyped-call]
                    attention.retrieve = retrieve  # type: ignore[method-assign]
            cell.compile(dynamic=True)

    @property
    def encoder_cells(self) -> list[EncoderCell]:
        """The cells of the encoder."""
        return list(cast(Iterable[EncoderCell], self.encoder))

    @property
    def decoder_cells(self) -> list[DecoderCell]:
        """The cells of the decoder."""
        return list(cast(Iterable[DecoderCell], self.decoder))
