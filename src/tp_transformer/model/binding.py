"""How a filler and a role become one vector: one class per binding.

A binding takes the filler that each head retrieved and the role that the head emitted, and gives
the vector of `d_bound` numbers per head that the output map reads (equation 4). What each one
adds to an attention layer with d_model = n_heads * d_head:

==============  ==================  =============================================================
binding         d_bound             parameters beyond plain attention
==============  ==================  =============================================================
`none`          d_head              none
`hadamard`      d_head              role map: d_model^2 + d_model
`tensor`        d_head^2            role map, and (d_head - 1) * d_model^2 in the output map
`low-rank`      rank                role map, 2 * n_heads * rank * d_head in the two projections,
                                    and n_heads * (rank - d_head) * d_model in the output map
`convolution`   d_head              role map
==============  ==================  =============================================================
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import Size, check
from tp_transformer.foundation.registry import Registry
from tp_transformer.foundation.settings import nearest


class Binding(nn.Module):
    """Binds fillers to roles, both (…, head, position, d_head), into (…, head, position, d_bound).

    `role_gain` scales the initial role map where the binding itself would enlarge its vectors. The
    options of a binding are the keyword-only parameters of its class.
    """

    needs_role = True
    role_gain = 1.0

    def __init__(self, n_heads: int, d_head: int, d_bound: int | None = None) -> None:
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_head
        self.d_bound = d_head if d_bound is None else d_bound

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Bind every filler to its role."""
        raise NotImplementedError


BINDINGS: Registry[type[Binding]] = Registry("binding")


@BINDINGS.register("none")
class NoBinding(Binding):
    """Plain attention: the filler as it is, and no role."""

    needs_role = False

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Return the filler."""
        return filler


@BINDINGS.register("hadamard")
class HadamardBinding(Binding):
    """The paper's binding: the elementwise product, the tensor product's diagonal (equation 4)."""

    def forward(self, filler: Tensor, role: Tensor) -> Tensor:
        """Multiply filler and role elementwise."""
        return filler * role


@BINDINGS.register("tensor")
class TensorBinding(Binding):
    """The full tensor product (the appendix): every filler element times every role element."""

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
    """

    def __init__(self, n_heads: int, d_head: int, *, rank: Size) -> None:
        super().__init__(n_heads, d_head, rank)
        self.filler_projection = nn.Parameter(torch.empty(n_heads, rank, d_head))  # M transposed
        self.role_projection = nn.Parameter(torch.empty(n_heads, rank, d_head))  # N transposed
        self.initialise()

    def initialise(self) -> None:
        """Draw each head's two projections Xavier-uniformly, as every other matrix."""
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
            return filler * role  # there is no FFT of nothing
        # There is no FFT in half precision on CPUs.
        wide = torch.promote_types(filler.dtype, torch.float32)
        spectrum = torch.fft.rfft(filler.to(wide)) * torch.fft.rfft(role.to(wide))
        return torch.fft.irfft(spectrum, n=self.d_head).to(filler.dtype)


def binding_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a binding by name."""
    parameters = inspect.signature(BINDINGS[name]).parameters
    return {key: one for key, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def make_binding(name: str, n_heads: int, d_head: int, options: Mapping[str, Any]) -> Binding:
    """The binding of that name for heads of that size; an option that is None is absent.

    Raises:
        SettingsError: if there is no such binding, or an option is unknown, missing or out of range
    """
    known = binding_options(name)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in known:
            raise SettingsError(f"the {name} binding has no {key}{nearest(key, known)}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in given:
            raise SettingsError(f"the {name} binding needs a {key}")
        if key in given:
            check(f"the {key} of the {name} binding", given[key], parameter.annotation)
    return BINDINGS[name](n_heads, d_head, **given)
