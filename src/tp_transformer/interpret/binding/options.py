"""Options of the binding analysis."""

from dataclasses import dataclass

from tp_transformer.foundation.ranges import PositiveInt
from tp_transformer.interpret.core.options import AnalysisOptions


@dataclass(frozen=True, kw_only=True)
class BindingOptions(AnalysisOptions):
    """Find the structures that attention confuses, by exchanging numbers in nested fractions.

    Attributes:
        draws: the number of simplified networks of each size
    """

    needs_characters = True
    draws: PositiveInt = 50
