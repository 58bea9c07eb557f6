"""Options of the tensor-product analysis."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.ranges import Layer
from tp_transformer.interpret.core.options import AnalysisOptions, Where

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class TensorProductOptions(AnalysisOptions):
    """Measure how much of the tensor product of fillers and roles the Hadamard product keeps.

    Attributes:
        layer: index of one layer, in place of all layers; negative indices count from the end
        where: the attention to look at
    """

    needs_roles = True
    layer: Layer | None = None
    where: Where = "encoder"

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        super().check(config)
        binding = config.weightless_binding()
        if binding.binds_values or binding.d_role != binding.d_head:
            raise UserError(
                "this analysis needs a role as long as the filler that it is bound to, which the "
                f"{config.binding} binding of this model lacks"
            )
