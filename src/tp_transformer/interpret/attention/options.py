"""Options of the attention analysis."""

from collections.abc import Sequence
from dataclasses import dataclass

from tp_transformer.foundation.ranges import Count
from tp_transformer.interpret.core.options import HeadOptions, Where, chosen
from tp_transformer.interpret.core.relations import RELATIONS


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
    shown: Count = 3  # as in the paper's figure
    questions: Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation is not None:
            chosen("relation", self.relation, RELATIONS)
