"""Options of the interchange analysis."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tp_transformer.interpret.core.options import HeadOptions, require_roles

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class InterchangeOptions(HeadOptions):
    """Exchange the roles of two numbers in nested fractions: whether the answer follows them."""

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no roles, or no such layer or head."""
        super().check(config)
        require_roles(config)
