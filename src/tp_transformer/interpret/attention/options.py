"""Options of the attention analysis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tp_transformer.interpret.core.choices import chosen_relations
from tp_transformer.interpret.core.options import HeadOptions, Where

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(HeadOptions):
    """Plot attention maps, and rank heads by the relations that they follow.

    Attributes:
        where: the attention to look at
        relation: search for one relation only
        shown: the number of questions of the sample whose maps are plotted
        questions: plot the maps of these questions instead
    """

    where: Where = "encoder"
    relation: str | None = None
    shown: int = 3  # as in the paper's figure
    questions: Sequence[str] | None = None

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if there is no such layer, head or relation."""
        super().check(config)
        chosen_relations(self.relation)
