"""TP-attention (section 2.1 of the paper).

For one head at position t, without the index of the layer:

    k, v, q, r = affine maps of the states                             (equation 1)
    filler_t   = sum over i of alpha_ti v_i                            (equation 2)
    alpha_ti   = softmax over i of (q_t . k_i / sqrt(d_head))          (equation 3)
    output_t   = sum over heads of W_o bind(filler_t, r_t) + b_o       (equation 4)

The role is computed from the same state as the query; in cross-attention, from that of the decoder.
With a binding that `binds_values`, bind(v_i, r_i) replaces v_i, with a role from the same state as
the value, and the output map is applied to the filler.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.model.binding import Binding
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.layout import Pattern
from tp_transformer.model.search import LayerCache
from tp_transformer.model.trace import Traced

Map = tuple[Tensor, Tensor | None]  # weight (out, in) and bias (out)


class Attention(Traced):
    """Base class of attention: equations 2 to 4, which follow the projections of equation 1."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        binding: Binding,
        *,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.n_heads, self.binding, self.dropout = n_heads, binding, dropout
        self.out_proj = nn.Linear(n_heads * binding.d_bound, d_model, bias=bias)
        self.role_proj: nn.Linear | None = None  # the role map, if it is not fused with others

    def points(self) -> tuple[str, ...]:
        """Return the names of the trace points, in the order of computation."""
        role = ("role",) if self.binding.d_role else ()
        return ("query", "key", "value", *role, "weights", "filler", "bound", "output")

    def extra_repr(self) -> str:
        """Return the sizes to print with the module."""
        return f"n_heads={self.n_heads}, d_head={self.binding.d_head}"

    def heads(self, projected: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Divide the maps of equation 1, (batch, position, name * head * d_head), by their names.

        Each tensor is (batch, head, position, d_head), and passes the trace point of its name.
        """
        batch, length, width = projected.shape
        n_names, n_heads = len(names), self.n_heads
        d_head = width // (n_names * n_heads)  # roles may have another size than fillers
        if length == 1:  # a step of decoding: no transposition needed
            tensors = projected.view(batch, n_names, n_heads, 1, d_head).unbind(1)
        else:
            by_name = projected.view(batch, length, n_names, n_heads, d_head).unbind(2)
            tensors = tuple(tensor.transpose(1, 2) for tensor in by_name)
        return [self.point(name, tensor) for name, tensor in zip(names, tensors, strict=True)]

    def role_of(self, state: Tensor, fused: Sequence[Tensor]) -> Tensor | None:
        """Return the role (batch, head, position, d_role), or None if there is none.

        It is the one in `fused` or, with a separate role map, computed from `state`.
        """
        if fused or self.role_proj is None:
            return fused[0] if fused else None
        return self.heads(self.role_proj(state), ("role",))[0]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        role: Tensor | None,
        pattern: Pattern,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute equations 2 to 4 for all heads; also return the weights if needed.

        Queries, keys, values and roles are (batch, head, position, d_head).
        """
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights or self.is_traced("weights"):
            weights = self.point("weights", attention_weights(query, key, pattern.mask))
            weights = F.dropout(weights, dropout)  # (batch, head, query, key)
            filler = weights @ value
        else:
            filler = self.retrieve(query, key, value, pattern, dropout)
        filler = self.point("filler", filler)
        bound = filler if self.binding.binds_values else self.binding(filler, role)
        bound = self.point("bound", bound)  # (batch, head, query, d_bound)
        output = self.out_proj(bound.transpose(1, 2).flatten(2))
        return self.point("output", output), weights  # (batch, query, d_model)

    def retrieve(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float
    ) -> Tensor:
        """Compute equations 2 and 3 in the layout of the batch, without returning the weights."""
        return pattern.fillers(query, key, value, dropout)

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name, also if they are fused.

        They are detached, but share the memory of the parameters.
        """
        role = {} if self.role_proj is None else maps_of(self.role_proj, ("role",))
        return {**role, **maps_of(self.out_proj, ("output",))}

    def initialise(self) -> None:
        """Initialise each map Xavier-uniformly, also if maps are fused."""
        for name, (weight, _) in self.maps().items():
            nn.init.xavier_uniform_(weight, gain=self.binding.role_gain if name == "role" else 1.0)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Compute equation 3: the weight of each key for each query, (batch, head, query, key).

    The mask is True where a query may attend, or has numbers to add to the scores.
    """
    scores = query / math.sqrt(query.shape[-1]) @ key.transpose(-2, -1)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(dim=-1)


class SelfAttention(Attention):
    """Attention of a sequence to itself, with one fused map for query, key, value and role."""

    def __init__(self, config: TransformerConfig) -> None:
        d_model, binding = config.d_model, config.make_binding()
        super().__init__(d_model, config.n_heads, binding, dropout=config.dropout)
        self.names = ("query", "key", "value", *_fused_role(binding))
        self.in_proj = nn.Linear(d_model, len(self.names) * d_model)
        if binding.d_role and "role" not in self.names:
            self.role_proj = nn.Linear(d_model, config.n_heads * binding.d_role)

    def forward(self, state: Tensor, pattern: Pattern, cache: LayerCache | None = None) -> Tensor:
        """Attend within `state` (batch, position, d_model), and to the positions in the cache."""
        query, key, value, *fused = self.heads(self.in_proj(state), self.names)
        role = self.role_of(state, fused)
        if self.binding.binds_values:
            value, role = self.binding(value, role), None
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, role, pattern)[0]

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        return {**maps_of(self.in_proj, self.names), **super().maps()}


class CrossAttention(Attention):
    """Attention of the decoder to the encoder, whose keys and values are computed once."""

    def __init__(self, config: TransformerConfig) -> None:
        d_model, binding = config.d_model, config.make_binding()
        super().__init__(d_model, config.n_heads, binding, dropout=config.dropout)
        role = _fused_role(binding)
        self.names = ("query",) if binding.binds_values else ("query", *role)
        self.memory_names = ("key", "value", *role) if binding.binds_values else ("key", "value")
        self.in_proj = nn.Linear(d_model, len(self.names) * d_model)
        self.memory_proj = nn.Linear(d_model, len(self.memory_names) * d_model)
        if binding.d_role and not role:
            self.role_proj = nn.Linear(d_model, config.n_heads * binding.d_role)

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the output of the encoder (batch, source, d_model)."""
        key, value, *fused = self.heads(self.memory_proj(memory), self.memory_names)
        if self.binding.binds_values:
            value = self.binding(value, self.role_of(memory, fused))
        return key, value

    def forward(self, state: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> Tensor:
        """Attend from `state` (batch, position, d_model) to the keys and values of the source.

        If each question has several rows, as in beam search, they are treated as positions of one
        row, so that keys and values are not repeated.
        """
        n_rows = key.shape[0]  # `len` would fix the number in an exported graph
        rows = state if n_rows == state.shape[0] else state.view(n_rows, -1, state.shape[-1])
        query, *fused = self.heads(self.in_proj(rows), self.names)
        role = None if self.binding.binds_values else self.role_of(rows, fused)
        output, _ = self.attend(query, key, value, role, pattern)
        return output.view(state.shape)

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        query, memory = (self.in_proj, self.names), (self.memory_proj, self.memory_names)
        return {**maps_of(*query), **maps_of(*memory), **super().maps()}


def maps_of(layer: nn.Linear, names: Sequence[str]) -> dict[str, Map]:
    """Return the affine maps that a layer fuses by name, detached."""
    weights, bias = layer.weight.detach().chunk(len(names)), layer.bias
    biases = [None] * len(names) if bias is None else bias.detach().chunk(len(names))
    return dict(zip(names, zip(weights, biases, strict=True), strict=True))


def _fused_role(binding: Binding) -> tuple[str, ...]:
    """Return the name of the role if its map can be fused with the others: it has their size."""
    return ("role",) if binding.d_role == binding.d_head else ()
