"""Bindings of a filler and a role to one vector; each is a class.

A binding combines the filler and the role of each head to a vector of `d_bound` numbers, the input
of the output map (equation 4). The table has the parameters that each binding adds to an attention
layer with d_model = n_heads * d_head; "role map" is d_model^2 + d_model:

==============  ==================  =============================================================
binding         d_bound             parameters beyond plain attention
==============  ==================  =============================================================
`none`          d_head              none
`constant`      d_head              d_model
`hadamard`      d_head              role map
`residual`      d_head              role map
`sigmoid`       d_head              role map; if `per_head`, n_heads * (d_model + 1)
`silu`          d_head              role map
`value`         d_head              role map
`dictionary`    d_head              n_heads * n_roles * (d_model + 1), and n_roles * d_head
`tensor`        d_head^2            role map, and (d_head - 1) * d_model^2 in the output map
`low-rank`      rank                role map, 2 * n_heads * rank * d_head in the two projections,
                                    and n_heads * (rank - d_head) * d_model in the output map
`convolution`   d_head              role map
==============  ==================  =============================================================

docs/model.md compares the bindings.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.errors import SettingsError, nearest
from tp_transformer.ranges import NonNegative, Size, check
from tp_transformer.registry import Registry


class Binding(nn.Module):
    """Binds fillers (…, head, position, d_head) to roles (…, head, position, d_role).

    The result is (…, head, position, d_bound). The role map computes roles of `d_role` dimensions
    per head; a binding with a `d_role` of 0 has no role map, and its role is None. `role_gain`
    scales the initial role map of bindings that would enlarge their vectors. The options of a
    binding are the keyword-only parameters of its class.
    """

    # Whether values are bound before attention, to roles of their own positions.
    binds_values = False
    role_gain = 1.0

    def __init__(
        self, n_heads: int, d_head: int, d_bound: int | None = None, d_role: int | None = None
    ) -> None:
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_head
        self.d_bound = d_head if d_bound is None else d_bound
        self.d_role = d_head if d_role is None else d_role

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Bind each filler to its role."""
        raise NotImplementedError

    @property
    def has_penalty(self) -> bool:
        """Whether `penalty` adds a term to the training loss."""
        return False

    def penalty(self, role: Tensor) -> Tensor:
        """Return a term of the loss, (…, position), of roles (…, head, position, d_role)."""
        raise NotImplementedError

    def neutral_role(self) -> Tensor | None:
        """Return the role (d_role,) that leaves every filler unchanged, or None if none does."""
        return None


BINDINGS: Registry[type[Binding]] = Registry("binding")


@BINDINGS.register("none")
class NoBinding(Binding):
    """Plain attention: the filler as it is, and no role."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head, d_role=0)

    def forward(self, filler: Tensor, role: Tensor | None = None) -> Tensor:
        """Return the filler."""
        return filler


@BINDINGS.register("constant")
class ConstantBinding(Binding):
    """One learned role per head, the same at all positions; initially plain attention."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head, d_role=0)
        self.role = nn.Parameter(torch.ones(n_heads * d_head))  # a vector does not decay

    def forward(self, filler: Tensor, role: Tensor | None = None) -> Tensor:
        """Multiply filler and learned role elementwise."""
        return filler * self.role.view(self.n_heads, 1, self.d_head)


@BINDINGS.register("hadamard")
class HadamardBinding(Binding):
    """The paper's binding: the elementwise product, the tensor product's diagonal (equation 4)."""

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply filler and role elementwise."""
        return filler * role

    def neutral_role(self) -> Tensor | None:
        """Return ones."""
        return torch.ones(self.d_role)


@BINDINGS.register("residual")
class ResidualBinding(Binding):
    """The filler plus its Hadamard product with the role, as the embedding binds tokens."""

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply the filler elementwise by one plus the role."""
        return filler + filler * role

    def neutral_role(self) -> Tensor | None:
        """Return zeros."""
        return torch.zeros(self.d_role)


@BINDINGS.register("sigmoid")
class SigmoidBinding(Binding):
    """Gated attention (Qiu et al., 2025): the filler times a sigmoid of the role.

    Args:
        n_heads: number of heads
        d_head: size of fillers
        per_head: whether the gate has one number per head, not one per element of the filler
    """

    def __init__(self, n_heads: int, d_head: int, *, per_head: bool = False) -> None:
        super().__init__(n_heads, d_head, d_role=1 if per_head else d_head)

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply the filler by the sigmoid of the role."""
        return filler * role.sigmoid()


@BINDINGS.register("silu")
class SiluBinding(Binding):
    """The filler times SiLU of the role, r * sigmoid(r): a gate without an upper bound."""

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply the filler elementwise by SiLU of the role."""
        return filler * F.silu(role)


@BINDINGS.register("value")
class ValueBinding(Binding):
    """A sigmoid gate of each value, computed from the value's own position (Qiu et al., 2025).

    The filler is then a weighted sum of gated values, independent of a gate of the query.
    """

    binds_values = True

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply values, given as `filler`, elementwise by the sigmoid of their roles."""
        return filler * role.sigmoid()


@BINDINGS.register("dictionary")
class DictionaryBinding(Binding):
    """Discrete roles (Jiang et al., 2021): a softmax over a dictionary of unit vectors.

    The filler is added to its product with the selected role, as in the published code. Two
    regularisers are that code's.

    Args:
        n_heads: number of heads
        d_head: size of fillers
        n_roles: size of the dictionary, which all heads of a layer share
        one_hot: weight of the regulariser for one role per head
        exclusive: weight of the regulariser for different roles in different heads
    """

    def __init__(
        self,
        n_heads: int,
        d_head: int,
        *,
        n_roles: Size = 20,
        one_hot: NonNegative = 0.0,
        exclusive: NonNegative = 0.0,
    ) -> None:
        super().__init__(n_heads, d_head, d_role=n_roles)
        self.one_hot, self.exclusive = one_hot, exclusive
        self.roles = nn.Parameter(torch.empty(n_roles, d_head))
        self.initialise()

    def initialise(self) -> None:
        """Initialise with uniform directions and lengths of about one."""
        nn.init.normal_(self.roles, std=self.d_head**-0.5)

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply the filler elementwise by one plus the role that the scores `role` select."""
        selected = role.softmax(dim=-1) @ F.normalize(self.roles, dim=-1)
        return filler + filler * selected

    @property
    def has_penalty(self) -> bool:
        """Whether a regulariser has a weight."""
        return bool(self.one_hot or self.exclusive)

    def penalty(self, role: Tensor) -> Tensor:
        """Return the weighted regularisers of the scores `role`, each a mean over heads.

        The published code also maximises the sum of squared weights. As weights sum to one, this is
        the same as `one_hot`, up to a constant.
        """
        wide = torch.promote_types(role.dtype, torch.float32)
        weights = role.to(wide).softmax(dim=-1)  # (…, head, position, role)
        scattered = (weights * (1 - weights)).sum(dim=(-3, -1))
        total = weights.sum(dim=-3)  # how much all heads select each role
        shared = (total * (1 - total)).square().sum(dim=-1)
        return (self.one_hot * scattered + self.exclusive * shared) / self.n_heads


@BINDINGS.register("tensor")
class TensorBinding(Binding):
    """The full tensor product of filler and role (appendix of the paper)."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head, d_head * d_head)

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Return the outer product, filler-major: element i * d_head + j is filler_i * role_j."""
        return (filler.unsqueeze(-1) * role.unsqueeze(-2)).flatten(-2)


@BINDINGS.register("low-rank")
class LowRankBinding(Binding):
    """Section 7 with a free rank: filler and role projected per head, then multiplied.

    With rank d_head this is the paper's optimal d_head-dimensional compression of the tensor
    product; with rank d_head^2 it can be the tensor product itself.

    Args:
        n_heads: number of heads
        d_head: size of fillers and roles
        rank: size of the projections of a filler and a role
    """

    def __init__(self, n_heads: int, d_head: int, *, rank: Size) -> None:
        super().__init__(n_heads, d_head, rank)
        self.filler_projection = nn.Parameter(torch.empty(n_heads, rank, d_head))  # M transposed
        self.role_projection = nn.Parameter(torch.empty(n_heads, rank, d_head))  # N transposed
        self.initialise()

    def initialise(self) -> None:
        """Initialise the two projections of each head Xavier-uniformly."""
        for projection in (self.filler_projection, self.role_projection):
            for head in projection:
                nn.init.xavier_uniform_(head)

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply the projections of filler and role elementwise."""
        projected_filler = filler @ self.filler_projection.transpose(-2, -1)
        return projected_filler * (role @ self.role_projection.transpose(-2, -1))


@BINDINGS.register("convolution")
class ConvolutionBinding(Binding):
    """Circular convolution, the binding of holographic reduced representations (Plate, 1995)."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head)
        # An element of the convolution is a sum of d_head products. Plate draws vectors with
        # variance 1 / d_head for that reason; here the role's map is scaled down instead.
        self.role_gain = d_head**-0.5

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Convolve filler and role circularly: element j is the sum of filler_k * role_(j - k)."""
        if not filler.numel():
            return filler * role  # the FFT does not support empty tensors
        # CPUs have no FFT in half precision.
        wide = torch.promote_types(filler.dtype, torch.float32)
        spectrum = torch.fft.rfft(filler.to(wide)) * torch.fft.rfft(role.to(wide))
        return torch.fft.irfft(spectrum, n=self.d_head).to(filler.dtype)

    def neutral_role(self) -> Tensor | None:
        """Return the first unit vector, whose circular convolution with a filler is the filler."""
        return torch.eye(self.d_role)[0]


def options_of(binding: type[Binding]) -> dict[str, inspect.Parameter]:
    """Return the options of a class of bindings by name."""
    parameters = inspect.signature(binding, eval_str=True).parameters
    return {key: value for key, value in parameters.items() if value.kind is value.KEYWORD_ONLY}


def make_binding(name: str, n_heads: int, d_head: int, options: Mapping[str, Any]) -> Binding:
    """Return a registered binding for heads of this size; an option that is None is absent.

    Raises:
        SettingsError: if there is no such binding, or an option is unknown, missing or out of range
    """
    known = options_of(BINDINGS[name])
    present = {key: value for key, value in options.items() if value is not None}
    for key in present:
        if key not in known:
            raise SettingsError(f"the {name} binding has no {key}{nearest(key, known)}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in present:
            raise SettingsError(f"the {name} binding needs a {key}")
        if key in present:
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            check(f"the {key} of the {name} binding", present[key], hint)
    return BINDINGS[name](n_heads, d_head, **present)
