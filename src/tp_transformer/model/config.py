"""The shape of a Transformer, which the model and all its layers are built from."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import Depth, ShareBelowOne, Size, check_fields
from tp_transformer.model.binding import BINDINGS, Binding, binding_options, make_binding
from tp_transformer.model.weightless import WithoutWeights


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of a Transformer; as it stands, the paper's TP-Transformer.

    Attributes:
        d_model: size of a cell's state
        d_ff: size of the feed-forward layer
        n_heads: attention heads, which share d_model evenly
        n_layers: cells in the encoder, and again in the decoder
        n_vocab: rows of the embedding; absent means as many as the vocabulary has tokens
        n_positions: longest sequence, start and end tokens included
        binding: how a filler and a role become one vector; none is plain attention
        binding_options: options of the binding by name, such as the rank of the low-rank binding
        embedding_binding: whether tokens with their positions are bound to roles as well
        initialisation: paper draws every matrix Xavier-uniformly; authors leaves TP-attention's as
            nn.Linear draws them, as the published code does
        dropout: of embeddings, attention weights and the output of every sub-layer
    """

    d_model: Size = 512
    d_ff: Size = 2048
    n_heads: Size = 8
    n_layers: Depth = 6
    n_vocab: Size | None = None
    n_positions: Size = 200
    binding: str = "hadamard"
    binding_options: dict[str, Any] = field(default_factory=dict)
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
        self.weightless_binding()  # raises if there is no such binding

    @staticmethod
    def option_types() -> dict[str, Any]:
        """The options of all bindings by name, which files and commands give as if fields."""
        return {
            name: option.annotation
            for binding in BINDINGS
            for name, option in binding_options(binding).items()
        }

    def make_binding(self) -> Binding:
        """The binding of one attention layer."""
        d_head = self.d_model // self.n_heads
        return make_binding(self.binding, self.n_heads, d_head, self.binding_options)

    @property
    def d_role(self) -> int:
        """How many numbers per head the role map gives; 0 if there is none."""
        return self.weightless_binding().d_role

    @property
    def least_numbers(self) -> int:
        """A lower bound of how many numbers the model holds: its large matrices and its positions.

        A cell of the encoder has one attention layer, and one of the decoder two.
        """
        binding = self.weightless_binding()
        attention = self.d_model * (
            3 * self.d_model + self.n_heads * (binding.d_bound + binding.d_role)
        )
        feed_forward = 2 * self.d_model * self.d_ff
        embedding = self.d_model * ((self.n_vocab or 0) + self.n_positions)
        return self.n_layers * (3 * attention + 2 * feed_forward) + embedding

    def weightless_binding(self) -> Binding:
        """The binding without the memory of its parameters, to ask for its sizes."""
        with WithoutWeights(), torch.device("meta"):
            return self.make_binding()
