"""The shape of a Transformer, which the model and all its layers are built from."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tp_transformer.errors import SettingsError
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
        n_vocab: rows of the embedding
        n_positions: longest sequence, start and end tokens included
        binding: how a filler and a role become one vector; none is plain attention
        binding_options: options of the binding by name, such as the rank of the low-rank binding
        embedding_binding: whether tokens with their positions are bound to roles as well
        initialisation: paper draws every matrix Xavier-uniformly; authors leaves TP-attention's as
            nn.Linear draws them, as the published code does
        dropout: of embeddings, attention weights and the output of every sub-layer
    """

    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    n_layers: int = 6
    n_vocab: int = 72
    n_positions: int = 200
    binding: str = "hadamard"
    binding_options: dict[str, Any] = field(default_factory=dict)
    embedding_binding: bool = True
    initialisation: Literal["paper", "authors"] = "paper"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "n_heads", "n_layers", "n_vocab", "n_positions"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % self.n_heads:
            raise SettingsError(
                f"n_heads must divide d_model evenly, and {self.n_heads} does not {self.d_model}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise SettingsError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.initialisation not in ("paper", "authors"):
            raise SettingsError(f"initialisation is paper or authors, not {self.initialisation!r}")
        with WithoutWeights():
            self.make_binding()  # raises if there is no such binding

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
