"""The model for transformers: `generate` and `Trainer` with a Transformer of this package.

There is no second implementation: the class calls `encode`, `decode` and `step` of the Transformer
that it contains, and keeps the keys and values of steps in an `EncoderDecoderCache`.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from tp_transformer.errors import FolderError
from tp_transformer.interop.hf.config import TPTransformerConfig
from tp_transformer.model.batch import Batch
from tp_transformer.model.layout.padded import Padded
from tp_transformer.model.transformer import DecoderState, Memory, Transformer, memory_mask

IGNORED = -100  # the label of padding in transformers


@dataclass(frozen=True)
class EncoderOfModel:
    """The encoder of a model as a callable, for `generate`."""

    model: Transformer

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """Encode questions (batch, source)."""
        memory = self.model.encode(input_ids, source_layout(self.model, input_ids, attention_mask))
        return BaseModelOutput(last_hidden_state=memory.state)

    __call__ = forward


@dataclass(frozen=True)
class CachedLayer:
    """The keys and values of one layer in a cache of transformers."""

    cache: Cache
    layer: int

    @property
    def length(self) -> int:
        """The number of positions decoded so far."""
        return int(self.cache.get_seq_length(self.layer))

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new positions; return those of all positions."""
        return self.cache.update(key, value, self.layer)


def source_layout(model: Transformer, input_ids: Tensor, attention_mask: Tensor | None) -> Padded:
    """Return the layout of questions from their mask or, if there is none, from their ids."""
    if attention_mask is not None:
        return Padded(attention_mask.bool())
    return Padded.of(input_ids, model.vocabulary.pad)


class TPTransformerForConditionalGeneration(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A Transformer of this package, `model`, with the interface of transformers."""

    config_class = TPTransformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True  # read by Trainer: the loss of a part is divided by all tokens

    def __init__(self, config: TPTransformerConfig) -> None:
        super().__init__(config)
        self.model = config.build()
        self.generation_config.max_new_tokens = config.max_answer
        self.generation_config.decoder_start_token_id = config.decoder_start_token_id
        self.post_init()

    @classmethod
    def of(cls, model: Transformer) -> Self:
        """Return a model of this package, with its weights, for transformers."""
        with torch.device("meta"):
            made = cls(TPTransformerConfig.of(model))
        made.model = model
        return made.train(model.training)

    @classmethod
    def from_pretrained(
        cls, *arguments: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """Load a folder or a repository; raise if weights are missing."""
        model, found = super().from_pretrained(*arguments, output_loading_info=True, **options)
        for name in sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"]))):
            raise FolderError(f"the weights lack tensor {name}, or have it with another shape")
        return (model, found) if output_loading_info else model

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the model is initialised when it is built."""

    def get_input_embeddings(self) -> Any:
        """Return the embedding of tokens, which is also the output matrix."""
        return self.model.embedding.symbols

    def get_encoder(self, *_: Any, **__: Any) -> Any:
        """Return the encoder, which `generate` calls once."""
        return EncoderOfModel(self.model)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return labels, moved by one position, with a start token in front."""
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        shifted = torch.cat([start, labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)

    def forward(  # noqa: PLR0913, the signature of transformers
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: None = None,
        *,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Return the logits after each position of the answers, and their loss.

        Args:
            input_ids: questions (batch, source), padded on the right
            attention_mask: 1 where a question has a token; by default where it is not padding
            decoder_input_ids: answers so far (batch, target), beginning with the start token; by
                default made from `labels`
            decoder_attention_mask: not supported; answers are padded on the right
            encoder_outputs: output of the encoder, instead of `input_ids`
            past_key_values: keys and values of earlier positions
            labels: answers with their end tokens (batch, target); -100 and padding are ignored
            use_cache: whether to return keys and values; not in training
            num_items_in_batch: number of labels by which the loss is divided; by default those here
            return_dict: whether to return an object, not a tuple
        """
        is_static = past_key_values is not None and past_key_values.is_compileable
        if is_static or decoder_attention_mask is not None:
            raise ValueError("static caches and masks of answers are not supported")
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("give decoder_input_ids or labels")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if past_key_values is None and use_cache and labels is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        with self.model.penalised_roles() as roles:
            memory = self._memory(input_ids, attention_mask, encoder_outputs)
            logits = self._logits(decoder_input_ids, memory, past_key_values)
        loss = None
        if labels is not None:
            batch = self._batch(decoder_input_ids, labels, memory)
            found = self.model.loss_of(logits, batch)
            objective = found.total + self.model.penalty(roles, batch)
            loss = objective / (num_items_in_batch or found.n_tokens)
        output = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            encoder_last_hidden_state=memory.state,
        )
        return output if return_dict is not False else output.to_tuple()

    def _memory(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None,
    ) -> Memory:
        """Return the output of the encoder, which is computed if it is not given."""
        if encoder_outputs is not None:
            if attention_mask is None:
                raise ValueError("encoder_outputs need their attention_mask")
            return Memory(encoder_outputs[0], Padded(attention_mask.bool()))
        if input_ids is None:
            raise ValueError("give input_ids or encoder_outputs")
        return self.model.encode(input_ids, source_layout(self.model, input_ids, attention_mask))

    def _logits(self, target: Tensor, memory: Memory, past: EncoderDecoderCache | None) -> Tensor:
        """Return the logits after each position of `target`, which follows those of a cache."""
        if past is None:
            return self.model.decode(target, memory)
        state = self._state(memory, past)
        steps = [self.model.step(previous, state) for previous in target.unbind(1)]
        return torch.stack(steps, dim=1)

    def _state(self, memory: Memory, past: EncoderDecoderCache) -> DecoderState:
        """Return the state of the decoder whose keys and values are in a cache."""
        own, source = past.self_attention_cache, past.cross_attention_cache
        for layer, cell in enumerate(self.model.decoder_cells):
            if not past.is_updated.get(layer):
                source.update(*cell.cross_attention.remember(memory.state), layer)
                past.is_updated[layer] = True
        return self.model.resume(
            [(layer.keys, layer.values) for layer in source.layers],
            memory_mask(memory.layout.filled, memory.state.dtype),
            [CachedLayer(own, layer) for layer in range(len(self.model.decoder))],
        )

    def _batch(self, target: Tensor, labels: Tensor, memory: Memory) -> Batch:
        """Return the batch of this package that has these labels; its loss needs no source."""
        pad = self.config.pad_token_id
        output = labels.masked_fill(labels == IGNORED, pad)
        return Batch(
            source=target.new_empty(0),
            target_input=target,
            target_output=output,
            source_layout=memory.layout,
            target_layout=Padded.of(output, pad),
            pad=pad,
        )
