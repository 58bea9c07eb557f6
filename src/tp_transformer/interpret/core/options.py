"""Options that several analyses have, and how they are checked.

Nothing here imports torch, because the command line reads its options from these classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.ranges import Count, Layer, check_fields
from tp_transformer.settings import nearest

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig

T = TypeVar("T")
Where = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Base class for the options of an analysis.

    Attributes:
        layer: index of the layer; negative indices count from the end
    """

    needs_roles: ClassVar[bool] = False
    needs_characters: ClassVar[bool] = False  # of expressions: a model of words lacks them
    layer: Layer | None = -1

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        if self.needs_roles and not config.d_role:
            raise UserError("this analysis needs roles, which the attention of this model lacks")
        layer_index(self.layer, config.n_layers)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(AnalysisOptions):
    """Options of an analysis that can be restricted to one head.

    Attributes:
        head: index of one head, in place of all heads
    """

    head: Count | None = None

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        super().check(config)
        head_indices(self.head, config.n_heads)


def layer_index(layer: int | None, n_layers: int) -> int:
    """Return the index of a layer from 0; the last layer by default."""
    layer = -1 if layer is None else layer
    if not -n_layers <= layer < n_layers:
        raise SettingsError(
            f"the model has layers 0 to {n_layers - 1}, or -1 for the last, but no layer {layer}"
        )
    return layer % n_layers


def head_indices(head: int | None, n_heads: int) -> list[int]:
    """Return one head, or every head."""
    if head is not None and not 0 <= head < n_heads:
        raise SettingsError(f"the model has heads 0 to {n_heads - 1}, not {head}")
    return list(range(n_heads)) if head is None else [head]


def chosen(noun: str, name: str, choices: Mapping[str, T]) -> T:
    """Return what a user has chosen by name; an unknown name is an error that lists the names."""
    if name not in choices:
        raise SettingsError(
            f"there is no {noun} {name!r}{nearest(name, choices)}; "
            f"choose one of: {'; '.join(choices)}"
        )
    return choices[name]
