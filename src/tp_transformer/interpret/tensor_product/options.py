"""Options of the tensor-product analysis."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tp_transformer.interpret.core.options import AnalysisOptions, Where, require_roles

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class TensorProductOptions(AnalysisOptions):
    """Measure how much of the tensor product of fillers and roles the Hadamard product keeps.

    Attributes:
        layer: index of one layer, in place of all layers; negative indices count from the end
        where: the attention to look at
    """

    layer: int | None = None
    where: Where = "encoder"

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no roles, or no such layer."""
        super().check(config)
        require_roles(config)
