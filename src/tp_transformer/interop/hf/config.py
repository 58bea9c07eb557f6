"""The configuration of a model for transformers."""

from dataclasses import fields
from typing import Any, Self

from transformers import PreTrainedConfig

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.model.base import ARCHITECTURES, Model
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.family import class_of, model_config
from tp_transformer.model.transformer import Transformer


def setting_names(architecture: str) -> set[str]:
    """Return the names of the settings of an architecture, including options of bindings."""
    kind = ARCHITECTURES[architecture]
    if not issubclass(kind, Transformer):
        raise SettingsError(
            f"only Transformers can be used with transformers, not the architecture {architecture}"
        )
    own = {each.name for each in fields(kind.config_type)} - {"binding_options"}
    return own | TransformerConfig.option_types().keys()


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
        own = {name: settings.pop(name) for name in setting_names(architecture) & settings.keys()}
        config = model_config({"architecture": architecture, **own})
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
