"""Options of the interchange analysis."""

from dataclasses import dataclass

from tp_transformer.foundation.ranges import Layer
from tp_transformer.interpret.core.options import HeadOptions


@dataclass(frozen=True, kw_only=True)
class InterchangeOptions(HeadOptions):
    """Exchange the roles of two numbers in nested fractions: whether the answer follows them.

    Attributes:
        layer: index of one layer, in place of each layer; negative indices count from the end. All
            layers at once are always included
    """

    needs_roles = True
    needs_characters = True
    layer: Layer | None = None
