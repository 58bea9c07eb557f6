"""The options of each analysis, which are the options of its command.

Nothing here imports torch, because the command line reads its options from these classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret.core.options import AnalysisOptions, HeadOptions, Where, chosen
from tp_transformer.interpret.core.relations import PLACES, RELATIONS
from tp_transformer.ranges import Count, Layer, PositiveInt

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class RolesOptions(HeadOptions):
    """Cluster role vectors, and score the structure of expressions in them.

    The role vectors of each head are clustered, and a cluster is named by what its positions have
    in common. Linear probes measure how much of the structure of the expression is in the roles,
    compared with untrained models and with the text alone.

    Attributes:
        clusters: the number of clusters of each head
        vectors: the vectors to cluster; by default the roles, or the values of a model without
            roles
    """

    needs_characters = True
    clusters: PositiveInt = 20
    vectors: Literal["role", "value"] | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(HeadOptions):
    """Plot attention maps, and rank heads by the relations that they follow.

    Attention maps, as in figure 3 of the paper, and the heads that follow a relation, such as that
    of an argument to its operator, beyond baselines that do not know the structure.

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


@dataclass(frozen=True, kw_only=True)
class InformationOptions(AnalysisOptions):
    """Reconstruct hidden states from the value vector of each head.

    How well an affine map reconstructs a hidden state from the value vector of one head: by the
    protocol of section 6.1 of the paper, and on held-out questions.

    Attributes:
        against: the folder of a second model, which is plotted below the first
        samples: the number of samples in the paper's protocol
    """

    against: Path | None = None
    samples: PositiveInt = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 3:
            raise SettingsError(
                f"the paper's protocol needs at least 3 samples, not {self.samples}"
            )


@dataclass(frozen=True, kw_only=True)
class BindingOptions(AnalysisOptions):
    """Find the structures that attention confuses, by exchanging numbers in nested fractions.

    Whether attention confuses (a/b)/(c/d) with the same numbers in other places: in the simplified
    network of section 6.2 of the paper, and in the model.

    Attributes:
        draws: the number of simplified networks of each size
    """

    needs_characters = True
    draws: PositiveInt = 50


@dataclass(frozen=True, kw_only=True)
class InterchangeOptions(HeadOptions):
    """Exchange the roles of two numbers in nested fractions: whether the answer follows them.

    Two of the four numbers in (a/b)/(c/d) get the roles that they have at the place of the other.
    If roles encode where a number stands, the model then answers the question with the numbers
    exchanged.

    Attributes:
        layer: index of one layer, in place of each layer; negative indices count from the end. All
            layers at once are always included
    """

    needs_roles = True
    needs_characters = True
    layer: Layer | None = None


@dataclass(frozen=True, kw_only=True)
class SurgeryOptions(HeadOptions):
    """Remove or replace role vectors, and compare the answers before and after.

    How many answers change if roles are zeroed, swapped, or replaced by another role or by the
    centroid of their cluster, compared with a control of each operation.

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


@dataclass(frozen=True, kw_only=True)
class TensorProductOptions(AnalysisOptions):
    """Measure how much of the tensor product of fillers and roles the Hadamard product keeps.

    The share of the variance of the tensor product of filler and role that the Hadamard product
    keeps (section 7 of the paper), compared with other projections.

    Attributes:
        layer: index of one layer, in place of all layers; negative indices count from the end
        where: the attention to look at
    """

    needs_roles = True
    layer: Layer | None = None
    where: Where = "encoder"

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        super().check(config)
        binding = config.weightless_binding()
        if binding.binds_values or binding.d_role != binding.d_head:
            raise UserError(
                "this analysis needs a role as long as the filler that it is bound to, which the "
                f"{config.binding} binding of this model lacks"
            )
