"""TP-attention in other models: a replacement for the attention of torch, and for all of a model.

Masks of torch mark what to ignore; those of this package are True where a query may attend.
"""

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.errors import SettingsError
from tp_transformer.model.attention import Attention, Map
from tp_transformer.model.binding import make_binding
from tp_transformer.model.layout import PaddedPattern

M = TypeVar("M", bound=nn.Module)

INPUTS = ("query", "key", "value")


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
        layer = make_binding(binding, num_heads, embed_dim // num_heads, binding_options)
        super().__init__(embed_dim, num_heads, layer, dropout=dropout, bias=bias)
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
        if layer.d_role:
            d_state = self.vdim if layer.binds_values else embed_dim
            has_bias = bias if role_bias is None else role_bias
            self.role_proj = nn.Linear(d_state, num_heads * layer.d_role, bias=has_bias)
        self.initialise()
        self.to(device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_add_neutral_role)  # type: ignore[no-untyped-call]

    def maps(self) -> dict[str, Map]:
        """Return the affine maps of equations 1 and 4 by name."""
        maps = [(w.detach(), b if b is None else b.detach()) for w, b in self._input_maps()]
        return {**dict(zip(INPUTS, maps, strict=True)), **super().maps()}

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
        _check_shapes(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        mask = _merged_mask(key_padding_mask, attn_mask, query, self.num_heads)
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
        states = (query, key, value)
        projected = (F.linear(x, *maps) for x, maps in zip(states, self._input_maps(), strict=True))
        query, key, value = (
            self.heads(x, (name,))[0] for x, name in zip(projected, INPUTS, strict=True)
        )
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

    def _input_maps(self) -> list[Map]:
        """Return the affine maps to queries, keys and values."""
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self.in_proj_weight is not None:
            return list(zip(self.in_proj_weight.chunk(3), biases, strict=True))
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return list(zip(weights, biases, strict=True))


def _add_neutral_role(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Complete a state dict of torch's attention with a role map that has no effect."""
    assert isinstance(module, TPMultiheadAttention)  # noqa: S101  for the type checker
    weight, bias = f"{prefix}role_proj.weight", f"{prefix}role_proj.bias"
    is_torchs = f"{prefix}out_proj.weight" in state_dict and not {weight, bias} & state_dict.keys()
    role, role_map = module.binding.neutral_role(), module.role_proj
    if is_torchs and role is not None and role_map is not None and role_map.bias is not None:
        state_dict[weight] = torch.zeros_like(role_map.weight)
        state_dict[bias] = role.repeat(module.num_heads).to(role_map.bias)


def _check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    n_heads: int,
) -> None:
    """Raise for shapes that would broadcast unintentionally, as torch does."""
    batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    if key.shape[:2] != (batch, keys) or value.shape[:2] != (batch, keys):
        raise ValueError(
            f"keys {tuple(key.shape)} and values {tuple(value.shape)} must have the batch of the "
            f"queries {tuple(query.shape)} and equal lengths"
        )
    for name, mask, shapes in (
        ("key_padding_mask", key_padding_mask, [(batch, keys)]),
        ("attn_mask", attn_mask, [(queries, keys), (batch * n_heads, queries, keys)]),
    ):
        if mask is None:
            continue
        if mask.shape not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"{name} has shape {tuple(mask.shape)} and must have {expected}")
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(f"{name} must be boolean or of floating point, not {mask.dtype}")


def _merged_mask(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, query: Tensor, n_heads: int
) -> Tensor | None:
    """Combine the two masks of torch into one of this package, with four axes.

    Boolean masks of torch mark what to ignore; floating-point masks are added to the scores.
    """
    masks = [] if key_padding_mask is None else [key_padding_mask[:, None, None, :]]
    if attn_mask is not None:
        # (query, key), or (batch * head, query, key)
        masks.append(
            attn_mask.view(-1, n_heads if attn_mask.dim() == 3 else 1, *attn_mask.shape[-2:])
        )
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~(masks[0] if len(masks) == 1 else masks[0] | masks[1])
    to_add = [
        torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)
        if mask.dtype == torch.bool
        else mask.to(query.dtype)
        for mask in masks
    ]
    return to_add[0] if len(to_add) == 1 else to_add[0] + to_add[1]


def add_roles(model: M, *, binding: str = "hadamard", **binding_options: Any) -> M:
    """Replace every `nn.MultiheadAttention` of a model by TP-attention, and return the model.

    The model computes the same as before until it is trained: its parameters are kept, and the new
    role maps compute the role that leaves fillers unchanged. Only bindings with such a role are
    accepted: hadamard, residual and convolution. Call it before the optimizer is made, which needs
    the parameters of the role maps.

    Args:
        model: the model, which is changed; if it is an attention itself, a new one is returned
        binding: name of the binding
        binding_options: options of the binding
    """
    replacements: dict[nn.Module, nn.Module] = {}  # a module may occur in several places
    for name, module in model.named_modules():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        if type(module) is not nn.MultiheadAttention:
            kind = type(module).__name__
            raise SettingsError(f"the attention {name!r} is a {kind}, not torch's attention itself")
        if module.bias_k is not None or module.add_zero_attn:
            raise SettingsError(
                f"the attention {name!r} has add_bias_kv or add_zero_attn, which TP-attention does "
                "not support"
            )
        replacements[module] = _with_roles(module, binding, binding_options)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return replacements.get(model, model)  # type: ignore[return-value]


def _with_roles(
    attention: nn.MultiheadAttention, binding: str, options: dict[str, Any]
) -> TPMultiheadAttention:
    """Return TP-attention with the parameters of an attention, and a role without effect."""
    weight = attention.out_proj.weight
    replacement = TPMultiheadAttention(
        attention.embed_dim,
        attention.num_heads,
        attention.dropout,
        bias=attention.in_proj_bias is not None,
        role_bias=True,
        kdim=attention.kdim,
        vdim=attention.vdim,
        batch_first=attention.batch_first,
        device=weight.device,
        dtype=weight.dtype,
        binding=binding,
        **options,
    )
    if replacement.binding.neutral_role() is None:
        raise SettingsError(
            f"no role of the {binding} binding leaves fillers unchanged; use hadamard, residual or "
            "convolution"
        )
    replacement.load_state_dict(attention.state_dict())  # sets the role
    for name, parameter in attention.named_parameters():
        owner, _, last = name.rpartition(".")
        # Frozen and shared parameters remain so.
        setattr(replacement.get_submodule(owner), last, parameter)
    return replacement.train(attention.training)
