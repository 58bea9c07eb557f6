"""Options of the interchange analysis."""

from dataclasses import dataclass

from tp_transformer.interpret.core.options import HeadOptions


@dataclass(frozen=True, kw_only=True)
class InterchangeOptions(HeadOptions):
    """Exchange the roles of two numbers in nested fractions: whether the answer follows them."""

    needs_roles = True
    needs_characters = True
