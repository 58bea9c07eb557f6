"""Models of this package in Hugging Face transformers: `generate`, `Trainer`, the Auto classes.

There is no second implementation: the model calls `encode`, `decode` and `step` of the Transformer
that it contains, and keeps the keys and values of steps in an `EncoderDecoderCache`. `export_hf`
writes the folder of `tpt export --format hf`. The import registers the model and its tokenizer with
the Auto classes.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizer,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import EOS, PAD, SOS, Vocabulary
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.interop.onnx import as_transformer, new_folder
from tp_transformer.model.base import ARCHITECTURES, Model
from tp_transformer.model.batch import Batch
from tp_transformer.model.checkpoint import AnyModel, class_of, load, model_config
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.folder import CONFIG, VOCABULARY, WEIGHTS, write_vocabulary
from tp_transformer.model.layout import Padded
from tp_transformer.model.loss import token_loss
from tp_transformer.model.search import DecoderState, memory_mask
from tp_transformer.model.transformer import Memory, Transformer

CARD = "README.md"
IGNORED = -100  # the label of padding in transformers


def setting_names(architecture: str) -> set[str]:
    """Return the names of the settings of an architecture, including options of bindings."""
    kind = ARCHITECTURES[architecture]
    if not issubclass(kind, Transformer):
        raise SettingsError(
            f"only Transformers can be used with transformers, not the architecture {architecture}"
        )
    names = {field.name for field in fields(kind.config_type)} - {"binding_options"}
    return names | TransformerConfig.option_types().keys()


class TPTransformerConfig(PreTrainedConfig):  # type: ignore[misc]
    """The settings and the vocabulary of a Transformer, in the form that transformers expects.

    The settings are those of `tp_transformer.TransformerConfig`, with the same defaults, and the
    options of the binding: `TPTransformerConfig(d_model=64, binding="low-rank", rank=8)`.

    Args:
        architecture: name of the architecture, a Transformer
        vocabulary: the tokens, as `Vocabulary.to_json` returns them; by default those of the
            Mathematics Dataset
        max_answer: default for the maximum number of tokens of an answer
        settings: settings of the model; others are passed to `PreTrainedConfig`
    """

    model_type = "tp_transformer"
    attribute_map = {  # noqa: RUF012, as transformers declares it
        "hidden_size": "d_model",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "vocab_size": "n_vocab",
    }

    def __init__(
        self,
        *,
        architecture: str = "transformer",
        vocabulary: Any = None,
        max_answer: int = Model.max_answer,
        **settings: Any,
    ) -> None:
        tokens = MATHEMATICS.vocabulary if vocabulary is None else Vocabulary.from_json(vocabulary)
        settings = {self.attribute_map.get(name, name): x for name, x in settings.items()}
        names = setting_names(architecture) & settings.keys()
        values = {name: settings.pop(name) for name in names}
        config = model_config({"architecture": architecture, **values})
        kind = class_of(config)
        for name, value in kind.config_values(kind.sized(config, tokens)).items():
            setattr(self, name, value)
        self.vocabulary = tokens.to_json()
        self.max_answer = max_answer
        special = {"pad_token_id": tokens.pad, "bos_token_id": tokens.sos}
        special |= {"eos_token_id": tokens.eos, "decoder_start_token_id": tokens.sos}
        super().__init__(**{**settings, "is_encoder_decoder": True})
        for name, value in special.items():
            setattr(self, name, value)

    @classmethod
    def of(cls, model: Transformer) -> Self:
        """Return the configuration of a model of this package."""
        values = model.config_values(model.config)
        tokens = model.vocabulary.to_json()
        return cls(vocabulary=tokens, max_answer=model.max_answer, **values)

    def build(self) -> Transformer:
        """Return an untrained model of this package with this configuration."""
        names = {"architecture", *setting_names(self.architecture)}
        config = model_config({name: getattr(self, name) for name in names if hasattr(self, name)})
        model = class_of(config)(config, Vocabulary.from_json(self.vocabulary))
        assert isinstance(model, Transformer)  # noqa: S101  for the type checker
        model.max_answer = self.max_answer
        return model


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
            wrapper = cls(TPTransformerConfig.of(model))
        wrapper.model = model
        return wrapper.train(model.training)

    @classmethod
    def from_pretrained(
        cls, *arguments: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """Load a folder or a repository; raise if weights are missing."""
        model, info = super().from_pretrained(*arguments, output_loading_info=True, **options)
        for name in sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"]))):
            raise FolderError(f"the weights lack tensor {name}, or have it with another shape")
        return (model, info) if output_loading_info else model

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
            of_tokens = token_loss(logits, batch)
            objective = of_tokens.total + self.model.penalty(roles, batch)
            loss = objective / (num_items_in_batch or of_tokens.n_tokens)
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
        target, source = past.self_attention_cache, past.cross_attention_cache
        for layer, cell in enumerate(self.model.decoder_cells):
            if not past.is_updated.get(layer):
                source.update(*cell.cross_attention.remember(memory.state), layer)
                past.is_updated[layer] = True
        return DecoderState(
            [(layer.keys, layer.values) for layer in source.layers],
            memory_mask(memory.layout.filled, memory.state.dtype),
            [CachedLayer(target, layer) for layer in range(len(self.model.decoder))],
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


class TPTransformerTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Converts texts to the token ids of a `Vocabulary`, and back.

    Questions become `<sos> text <eos>`. Answers, given as `text_target`, become `text <eos>`: the
    labels, which the decoder reads with `<sos>` in front. Special tokens are not recognised in
    texts, where `<sos>` is five characters.

    Args:
        vocab_file: vocabulary.json of a model folder
        options: options of `PreTrainedTokenizer`
    """

    vocab_files_names = {"vocab_file": VOCABULARY}  # noqa: RUF012, as transformers declares it
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: str, **options: Any) -> None:
        try:
            values = json.loads(Path(vocab_file).read_text("utf-8"))
            self.vocabulary = Vocabulary.from_json(values)
        except (OSError, ValueError) as error:
            raise FolderError(f"{vocab_file} is not a vocabulary: {error}") from error
        self._ids = {token: index for index, token in enumerate(self.vocabulary.tokens)}
        self._is_target = False
        options |= {"pad_token": PAD, "bos_token": SOS, "eos_token": EOS, "unk_token": None}
        options |= {"clean_up_tokenization_spaces": False, "split_special_tokens": True}
        super().__init__(**options)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self._ids)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        (ids,) = self.vocabulary.encode([text]).padded(self.vocabulary.pad)  # raises if unknown
        return [self.vocabulary.tokens[index] for index in ids[1:-1]]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocabulary.spell(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text of tokens."""
        return (" " if self.vocabulary.is_words else "").join(tokens)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return a question with its start and end tokens, or an answer with its end token."""
        if token_ids_1 is not None:
            raise ValueError("a model of this package reads one text, not a pair of texts")
        start = [] if self._is_target else [self.vocabulary.sos]
        return [*start, *token_ids_0, self.vocabulary.eos]

    def _switch_to_input_mode(self) -> None:
        self._is_target = False

    def _switch_to_target_mode(self) -> None:
        self._is_target = True

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Return the text of token ids.

        If special tokens are skipped, this is the answer that `Model.solve` returns: without the
        start token, and up to the end token.
        """
        if not skip_special_tokens:
            return super()._decode(token_ids, **options)
        ids = np.array([token_ids] if isinstance(token_ids, int) else token_ids, dtype=np.int64)
        ids = ids[1:] if ids[:1] == self.vocabulary.sos else ids
        (text,) = self.vocabulary.decode(ids[None])
        return text

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write vocabulary.json."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        file = Path(save_directory) / f"{prefix}{VOCABULARY}"
        write_vocabulary(file, self.vocabulary)
        return (str(file),)


def export_hf(model: AnyModel, folder: str | Path, card: str, files: Sequence[Path] = ()) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM.from_pretrained` and `AutoTokenizer` load.

    Args:
        model: the model
        folder: the folder to write, which must be new or empty
        card: the model card, README.md
        files: files to copy into the folder
    """
    transformer = as_transformer(model)
    with new_folder(Path(folder)) as unfinished:
        TPTransformerForConditionalGeneration.of(transformer).save_pretrained(unfinished)
        tokenizer_of(transformer.vocabulary, transformer.n_positions, unfinished)
        (unfinished / CARD).write_text(card, "utf-8", newline="\n")
        for file in files:
            shutil.copyfile(file, unfinished / file.name)


def tokenizer_of(
    vocabulary: Vocabulary, n_positions: int | None, folder: Path
) -> TPTransformerTokenizer:
    """Return the tokenizer of a vocabulary, whose files are written to a folder."""
    file = folder / VOCABULARY
    write_vocabulary(file, vocabulary)
    tokenizer = TPTransformerTokenizer(str(file), model_max_length=n_positions)
    tokenizer.save_pretrained(folder)
    return tokenizer


AutoConfig.register(TPTransformerConfig.model_type, TPTransformerConfig)
AutoModelForSeq2SeqLM.register(TPTransformerConfig, TPTransformerForConditionalGeneration)
AutoTokenizer.register(TPTransformerConfig, TPTransformerTokenizer)


class HubTransformer(
    PyTorchModelHubMixin,
    Transformer,
    library_name="tp-transformer",
    license="apache-2.0",
    paper_url="https://arxiv.org/abs/1910.06611",
    tags=["tp-transformer"],
):
    """A Transformer with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    A repository has the files of a model folder, which `tp_transformer.load` reads too.
    """

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load the folder of a model or a run, or a repository of the Hub, in evaluation mode.

        Args:
            pretrained_model_name_or_path: a folder or, if there is none of this name, a repository
                such as user/model
            options: options of `huggingface_hub.snapshot_download`, such as revision and token
        """
        name = str(pretrained_model_name_or_path)
        folder = Path(name)
        if not folder.is_dir():
            files = [WEIGHTS, CONFIG, VOCABULARY]
            folder = Path(snapshot_download(name, allow_patterns=files, **options))
        model = load(folder)
        if not isinstance(model, Transformer):
            raise FolderError(f"{name} has a model of the architecture {model.architecture()}")
        loaded = cls.from_weights(model.config, model.vocabulary, model.state_dict())
        loaded.max_answer = model.max_answer
        return loaded.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the files of a model folder; `save_pretrained` adds a card."""
        with TemporaryDirectory() as temporary:
            self.save(Path(temporary) / "model")
            shutil.copytree(Path(temporary) / "model", save_directory, dirs_exist_ok=True)
