"""TP-attention, and the drop-in replacement for the attention of torch.

Section 2.1 of the paper, for one head at position t (without the index of the layer):

    k, v, q, r = affine maps of the states                             (equation 1)
    filler_t   = sum over i of alpha_ti v_i                            (equation 2)
    alpha_ti   = softmax over i of (q_t . k_i / sqrt(d_head))          (equation 3)
    output_t   = sum over heads of W_o bind(filler_t, r_t) + b_o       (equation 4)

The role is computed from the same state as the query; in cross-attention, from that of the decoder.
With a binding that `binds_values`, bind(v_i, r_i) replaces v_i, with a role from the same state as
the value, and the output map is applied to the filler.

Cells use `SelfAttention` and `CrossAttention`; `TPMultiheadAttention` is the same attention with
the signature, the parameter names and the mask polarity of `torch.nn.MultiheadAttention`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.data.layout.base import Pattern
from tp_transformer.data.layout.padded import PaddedPattern
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.model.binding import Binding, make_binding
from tp_transformer.model.cache import LayerCache
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.masks import merged_mask, refuse_shapes
from tp_transformer.model.trace import Traced

Map = tuple[Tensor, Tensor | None]  # weight (out, in) and bias (out)


def _detached(weight: Tensor, bias: Tensor | None) -> Map:
    return weight.detach(), None if bias is None else bias.detach()


def _blocks(names: tuple[str, ...], weight: Tensor, bias: Tensor | None) -> dict[str, Map]:
    """Return the parts of a fused map by name."""
    weight, bias = _detached(weight, bias)
    weights = weight.chunk(len(names))
    biases = [None] * len(names) if bias is None else bias.chunk(len(names))
    return dict(zip(names, zip(weights, biases, strict=True), strict=True))


class Attention(Traced):
    """Base class of attention: heads, binding, and equations 2 to 4 after the projections."""

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
        self.n_heads = n_heads
        self.binding = binding
        self.dropout = dropout
        self.out_proj = nn.Linear(n_heads * self.binding.d_bound, d_model, bias=bias)
        self.role_proj: nn.Linear | None = None  # the role map, if it is not fused with others
        self.penalty: Tensor | None = None  # of the binding, added to the loss: (batch, query)

    def points(self) -> tuple[str, ...]:
        """Return the names of the trace points, in the order of computation."""
        role = ("role",) if self.binding.d_role else ()
        return ("query", "key", "value", *role, "weights", "filler", "bound", "output")

    def extra_repr(self) -> str:
        """Return the sizes to print with the module."""
        return f"n_heads={self.n_heads}, d_head={self.binding.d_head}"

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name, also if they are fused.

        They are detached, but share the memory of the parameters.
        """
        unfused = {} if self.role_proj is None else {"role": self.role_proj}
        layers = {**unfused, "output": self.out_proj}
        return {name: _detached(layer.weight, layer.bias) for name, layer in layers.items()}

    def initialise(self) -> None:
        """Initialise each map Xavier-uniformly, also if maps are fused."""
        for name, (weight, _) in self.maps().items():
            nn.init.xavier_uniform_(weight, gain=self.binding.role_gain if name == "role" else 1.0)

    def split(self, projected: Tensor, names: tuple[str, ...]) -> Iterator[Tensor]:
        """Split a fused projection (batch, position, part * head * d_head) into parts and heads.

        Each part is (batch, head, position, d_head) and passes the trace point of its name.
        """
        batch, length, width = projected.shape
        n_parts, n_heads = len(names), self.n_heads
        d_head = width // (n_parts * n_heads)  # roles may have another size than fillers
        if length == 1:  # a step of decoding: no transposition needed
            parts = projected.view(batch, n_parts, n_heads, 1, d_head).unbind(1)
        else:
            by_part = projected.view(batch, length, n_parts, n_heads, d_head).unbind(2)
            parts = tuple(part.transpose(1, 2) for part in by_part)
        return map(self.point, names, parts)

    def role_of(self, state: Tensor, fused: Sequence[Tensor]) -> Tensor | None:
        """Return the role (batch, head, position, d_role), or None if there is none.

        It is the one in `fused` or, with a separate role map, computed from `state`.
        """
        if fused or self.role_proj is None:
            return fused[0] if fused else None
        (role,) = self.split(self.role_proj(state), ("role",))
        return role

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
        if self.training and role is not None:
            self.penalty = self.binding.penalty(role)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights or self.is_traced("weights"):
            weights = self.point("weights", pattern.weights(query, key))
            weights = F.dropout(weights, dropout)
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
        """Compute equations 2 and 3 in the layout of the batch."""
        return pattern.fillers(query, key, value, dropout)


class SelfAttention(Attention):
    """Attention of a sequence to itself, with one fused map for query, key, value and role."""

    def __init__(self, config: TransformerConfig) -> None:
        d_model, binding = config.d_model, config.make_binding()
        super().__init__(d_model, config.n_heads, binding, dropout=config.dropout)
        is_fused = binding.d_role == binding.d_head
        self.names = ("query", "key", "value", "role")[: 4 if is_fused else 3]
        self.in_proj = nn.Linear(d_model, len(self.names) * d_model)
        if binding.d_role and not is_fused:
            self.role_proj = nn.Linear(d_model, config.n_heads * binding.d_role)

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        return {**_blocks(self.names, self.in_proj.weight, self.in_proj.bias), **super().maps()}

    def forward(self, state: Tensor, pattern: Pattern, cache: LayerCache | None = None) -> Tensor:
        """Attend within `state` (batch, position, d_model), and to the positions in the cache."""
        query, key, value, *fused = self.split(self.in_proj(state), self.names)
        role = self.role_of(state, fused)
        if self.binding.binds_values:
            value, role = self.binding(value, role), None
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, role, pattern)[0]


class CrossAttention(Attention):
    """Attention of the decoder to the encoder, whose keys and values are computed once."""

    def __init__(self, config: TransformerConfig) -> None:
        d_model, binding = config.d_model, config.make_binding()
        super().__init__(d_model, config.n_heads, binding, dropout=config.dropout)
        is_fused = binding.d_role == binding.d_head
        self.names = ("query", "role")[: 2 if is_fused and not binding.binds_values else 1]
        self.memory_names = ("key", "value", "role")[
            : 3 if is_fused and binding.binds_values else 2
        ]
        self.in_proj = nn.Linear(d_model, len(self.names) * d_model)
        self.memory_proj = nn.Linear(d_model, len(self.memory_names) * d_model)
        if binding.d_role and not is_fused:
            self.role_proj = nn.Linear(d_model, config.n_heads * binding.d_role)

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        return {
            **_blocks(self.names, self.in_proj.weight, self.in_proj.bias),
            **_blocks(self.memory_names, self.memory_proj.weight, self.memory_proj.bias),
            **super().maps(),
        }

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the output of the encoder (batch, source, d_model)."""
        key, value, *fused = self.split(self.memory_proj(memory), self.memory_names)
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
        query, *fused = self.split(self.in_proj(rows), self.names)
        role = None if self.binding.binds_values else self.role_of(rows, fused)
        output, _ = self.attend(query, key, value, role, pattern)
        return output.view(state.shape)


class TPMultiheadAttention(Attention):
    """TP-attention as a drop-in replacement for `torch.nn.MultiheadAttention`.

    It has the same arguments, the same parameter names and the same conventions: masks mark
    positions to ignore, and positions come before the batch unless `batch_first`. It adds
    `role_proj`, which maps the input of the query to roles (that of the value, for a binding that
    binds values) and has a bias if `role_bias`, by default as the other maps; and the choice of a
    binding. With `binding="none"` it computes the attention of torch. `add_roles` replaces every
    attention of a model.

    It loads a state dict of the module of torch. The role map, which the state dict lacks, is then
    set to the role that leaves fillers unchanged, so that the module computes the attention of
    torch until it is trained. The bindings hadamard, residual and convolution have such a role; the
    role map must have a bias. Otherwise `load_state_dict` reports the role map as missing.
    """

    # Read by nn.TransformerEncoderLayer. False disables its fast path, which would compute plain
    # attention from these parameters, without the role.
    _qkv_same_embed_dim = False

    def __init__(  # noqa: PLR0913, torch's signature
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        role_bias: bool | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        binding: str = "hadamard",
        **binding_options: Any,
    ) -> None:
        if min(num_heads, embed_dim) < 1 or embed_dim % num_heads:
            raise SettingsError(f"{num_heads} heads do not divide {embed_dim} dimensions evenly")
        made = make_binding(binding, num_heads, embed_dim // num_heads, binding_options)
        super().__init__(embed_dim, num_heads, made, dropout=dropout, bias=bias)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first = batch_first
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        else:
            self.register_parameter("in_proj_weight", None)
            self.q_proj_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
            self.k_proj_weight = nn.Parameter(torch.empty(embed_dim, self.kdim))
            self.v_proj_weight = nn.Parameter(torch.empty(embed_dim, self.vdim))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim)) if bias else None
        if made.d_role:
            d_state = self.vdim if made.binds_values else embed_dim
            has_bias = bias if role_bias is None else role_bias
            self.role_proj = nn.Linear(d_state, num_heads * made.d_role, bias=has_bias)
        self.initialise()
        self.to(device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_add_neutral_role)  # type: ignore[no-untyped-call]

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.detach().chunk(3)
        weights = (weight.detach() for weight in self._input_maps())
        names = ("query", "key", "value")
        maps = dict(zip(names, zip(weights, biases, strict=True), strict=True))
        return {**maps, **super().maps()}

    def initialise(self) -> None:
        """Initialise each map Xavier-uniformly and each bias with zeros, as torch does."""
        super().initialise()
        for _, bias in self.maps().values():
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend like `torch.nn.MultiheadAttention.forward`, with a role in each head.

        As there, `is_causal` is only a hint that `attn_mask` is causal; the mask decides.
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal describes attn_mask: pass the causal mask too")
        if query.is_nested:
            return self._forward_nested(query, key, value, need_weights)
        batched = query.dim() == 3
        if not batched:
            axis = 0 if self.batch_first else 1
            query, key, value = (x.unsqueeze(axis) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        refuse_shapes(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        mask = merged_mask(key_padding_mask, attn_mask, query, self.num_heads)
        output, weights = self._attend(query, key, value, mask, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return output, weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute equations 1 to 4 for batch-first inputs; the mask is True where attending."""
        role = self.role_of(value if self.binding.binds_values else query, ())
        biases: tuple[Tensor | None, ...] = (
            (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        )
        projected = map(F.linear, (query, key, value), self._input_maps(), biases)
        names = (("query",), ("key",), ("value",))
        query, key, value = (next(self.split(*one)) for one in zip(projected, names, strict=True))
        if self.binding.binds_values:
            value, role = self.binding(value, role), None
        output, weights = self.attend(
            query, key, value, role, PaddedPattern(mask), need_weights=need_weights
        )
        return output, weights if need_weights else None

    def _forward_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool
    ) -> tuple[Tensor, None]:
        # nn.TransformerEncoder converts padded tensors to nested ones for its fast path, even if
        # this attention, inserted later, disables that path in its layers.
        if need_weights or query is not key or key is not value:
            raise ValueError("nested tensors are supported only in self-attention without weights")
        rows = query.unbind()
        lengths = torch.tensor([len(row) for row in rows], device=query.device)
        padded = torch.nested.to_padded_tensor(query, 0.0)
        mask = torch.arange(padded.shape[1], device=query.device) < lengths[:, None]
        output, _ = self._attend(padded, padded, padded, mask[:, None, None, :], False)
        attended = [row[: len(source)] for row, source in zip(output, rows, strict=True)]
        return torch.nested.as_nested_tensor(attended), None

    def _input_maps(self) -> tuple[Tensor, ...]:
        """Return the maps to queries, keys and values."""
        if self.in_proj_weight is not None:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight


def _add_neutral_role(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Complete a state dict of torch's attention with a role map that has no effect."""
    assert isinstance(module, TPMultiheadAttention)  # noqa: S101  for the type checker
    weight, bias = f"{prefix}role_proj.weight", f"{prefix}role_proj.bias"
    is_torchs = f"{prefix}out_proj.weight" in state_dict and not {weight, bias} & state_dict.keys()
    role, role_map = module.binding.neutral_role(), module.role_proj
    if is_torchs and role is not None and role_map is not None and role_map.bias is not None:
        state_dict[weight] = torch.zeros_like(role_map.weight)
        state_dict[bias] = role.repeat(module.num_heads).to(role_map.bias)
