"""Options of the surgery analysis."""

from dataclasses import dataclass

from tp_transformer.foundation.ranges import PositiveInt
from tp_transformer.interpret.core.options import HeadOptions, chosen
from tp_transformer.interpret.core.relations import PLACES


@dataclass(frozen=True, kw_only=True)
class SurgeryOptions(HeadOptions):
    """Remove or replace role vectors, and compare the answers before and after.

    Attributes:
        at: change roles only at numbers, numerators, denominators, first arguments, second
            arguments or operators; or at the digit asked for, coefficients, exponents or items of a
            list
        clusters: the number of clusters of each head
    """

    needs_roles = True
    needs_characters = True
    at: str | None = None
    clusters: PositiveInt = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at is not None:
            chosen("place", self.at, PLACES)
