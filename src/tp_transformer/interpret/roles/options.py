"""Options of the roles analysis."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.options import HeadOptions

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class RolesOptions(HeadOptions):
    """Cluster role vectors, and score the structure of expressions in them.

    Attributes:
        clusters: the number of clusters of each head
        vectors: the vectors to cluster; by default the roles, or the values of a model without
            roles
    """

    clusters: int = 20
    vectors: Literal["role", "value"] | None = None

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no such layer, head or vectors."""
        super().check(config)
        has_roles = config.binding != "none"
        if self.vectors not in {None, "value", *(["role"] if has_roles else [])}:
            available = "role and value" if has_roles else "value"
            raise SettingsError(
                f"the model has no vectors {self.vectors!r} to cluster; it has {available}"
            )
