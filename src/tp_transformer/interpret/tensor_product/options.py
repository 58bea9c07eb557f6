"""Options of the tensor-product analysis."""

from dataclasses import dataclass

from tp_transformer.foundation.ranges import Layer
from tp_transformer.interpret.core.options import AnalysisOptions, Where


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
