"""Options of the surgery analysis."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.choices import chosen_place
from tp_transformer.interpret.core.options import HeadOptions, require_roles

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class SurgeryOptions(HeadOptions):
    """Remove or replace role vectors, and compare the answers before and after.

    Attributes:
        at: change roles only at numbers, numerators, denominators, first arguments, second
            arguments or operators
        clusters: the number of clusters of each head
    """

    at: str | None = None
    clusters: int = 20

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no roles, or there is no such layer, head or place."""
        super().check(config)
        require_roles(config)
        if self.at is not None:
            chosen_place(self.at)
        if self.clusters < 1:
            raise SettingsError(f"roles need at least 1 cluster, not {self.clusters}")
