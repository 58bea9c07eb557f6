"""Options of the roles analysis."""

from dataclasses import dataclass
from typing import Literal

from tp_transformer.foundation.ranges import PositiveInt
from tp_transformer.interpret.core.options import HeadOptions


@dataclass(frozen=True, kw_only=True)
class RolesOptions(HeadOptions):
    """Cluster role vectors, and score the structure of expressions in them.

    Attributes:
        clusters: the number of clusters of each head
        vectors: the vectors to cluster; by default the roles, or the values of a model without
            roles
    """

    needs_characters = True
    clusters: PositiveInt = 20
    vectors: Literal["role", "value"] | None = None
