"""The configuration of a Transformer."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tp_transformer.errors import SettingsError
from tp_transformer.model.binding import BINDINGS, Binding, make_binding, options_of
from tp_transformer.ranges import Depth, ShareBelowOne, Size, check_fields


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The configuration of a Transformer; the defaults are those of the TP-Transformer.

    Attributes:
        d_model: size of the hidden states
        d_ff: size of the feed-forward layer
        n_heads: number of attention heads, which must divide d_model
        n_layers: number of cells in the encoder, and in the decoder
        n_vocab: number of rows of the embedding; absent: the size of the vocabulary
        n_positions: maximum sequence length, including start and end tokens
        binding: name of the binding of filler and role; none is plain attention
        binding_options: options of the binding by name, such as the rank of the low-rank binding
        embedding_binding: whether embedded tokens are also bound to roles
        initialisation: paper, all matrices Xavier-uniform; or authors, as in the published code,
            where those of TP-attention have the default of nn.Linear
        dropout: of embeddings, attention weights and the output of each sub-layer
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
                f"n_heads must divide d_model, but {self.n_heads} does not divide {self.d_model}"
            )
        self.weightless_binding()  # raises if there is no such binding

    @staticmethod
    def option_types() -> dict[str, Any]:
        """Return the types of the options of all bindings, which files list among the fields."""
        return {
            name: option.annotation
            for binding in BINDINGS.values()
            for name, option in options_of(binding).items()
        }

    def make_binding(self) -> Binding:
        """Return a binding for one attention layer."""
        d_head = self.d_model // self.n_heads
        return make_binding(self.binding, self.n_heads, d_head, self.binding_options)

    @property
    def d_role(self) -> int:
        """The size of the role of a head; 0 if there is no role map."""
        return self.weightless_binding().d_role

    @property
    def least_numbers(self) -> int:
        """A lower bound of the number of parameters and positions.

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
        """Return the binding without memory for its parameters, for its sizes."""
        with WithoutWeights(), torch.device("meta"):
            return self.make_binding()


def _check_options_are_free(name: str, binding: type[Binding]) -> None:
    taken = {"architecture", *(each.name for each in fields(TransformerConfig))}
    for option in options_of(binding).keys() & taken:
        raise ValueError(f"the {name} binding cannot have an option {option}: models have one")


BINDINGS.require(_check_options_are_free)


_INITIALISERS = {
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.normal_,
    nn.init.uniform_,
}


class WithoutWeights(TorchFunctionMode):
    """A context in which modules are built without initialising their weights, to save time.

    The meta device would also work, but its first use imports for two seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Skip calls that initialise a tensor in place."""
        kwargs = kwargs or {}
        if func in _INITIALISERS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
