"""Options that several analyses have, and how they are checked.

Nothing here imports torch, because the command line reads its options from these classes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tp_transformer.errors import SettingsError, UserError

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig

Where = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Base class for the options of an analysis.

    Attributes:
        layer: index of the layer; negative indices count from the end
    """

    layer: int | None = -1

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the options name."""
        if self.layer is not None:
            layer_index(self.layer, config.n_layers)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(AnalysisOptions):
    """Options of an analysis that can be restricted to one head.

    Attributes:
        head: index of one head, in place of all heads
    """

    head: int | None = None

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no such layer or head."""
        super().check(config)
        head_indices(self.head, config.n_heads)


def layer_index(layer: int | None, n_layers: int) -> int:
    """Return the index of a layer from 0; the last layer by default."""
    layer = -1 if layer is None else layer
    if not -n_layers <= layer < n_layers:
        raise SettingsError(
            f"the model has layers 0 to {n_layers - 1}, or -1 for the last, but no layer {layer}"
        )
    return layer % n_layers


def head_indices(head: int | None, n_heads: int) -> list[int]:
    """Return one head, or every head."""
    if head is None:
        return list(range(n_heads))
    if not 0 <= head < n_heads:
        raise SettingsError(f"the model has heads 0 to {n_heads - 1}, not {head}")
    return [head]


def require_roles(config: "TransformerConfig") -> None:
    """Raise an error if the attention of the model has no roles."""
    if config.binding == "none":
        raise UserError("this analysis needs roles, and the attention of this model has no roles")
