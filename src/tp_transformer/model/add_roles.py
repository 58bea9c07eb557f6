"""TP-attention in the place of every attention of a model built from torch's modules."""

from typing import Any, TypeVar

from torch import nn

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.model.attention import TPMultiheadAttention

M = TypeVar("M", bound=nn.Module)


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
    made: dict[nn.Module, nn.Module] = {}  # a module may occur in several places
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            _refuse(module, name)
            made[module] = _with_roles(module, binding, binding_options)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in made:
                setattr(parent, name, made[child])
    return made.get(model, model)  # type: ignore[return-value]


def _refuse(attention: nn.MultiheadAttention, name: str) -> None:
    """Raise if an attention computes what TP-attention does not."""
    problem = None
    if type(attention) is not nn.MultiheadAttention:
        problem = f"is a {type(attention).__name__}, not torch's attention itself"
    elif attention.bias_k is not None or attention.add_zero_attn:
        problem = "has add_bias_kv or add_zero_attn, which TP-attention does not support"
    if problem is not None:
        raise SettingsError(f"the attention {name!r} {problem}")


def _with_roles(
    attention: nn.MultiheadAttention, binding: str, options: dict[str, Any]
) -> TPMultiheadAttention:
    """Return TP-attention with the parameters of an attention, and a role without effect."""
    weight = attention.out_proj.weight
    made = TPMultiheadAttention(
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
    if made.binding.neutral_role() is None:
        raise SettingsError(
            f"no role of the {binding} binding leaves fillers unchanged; use hadamard, residual or "
            "convolution"
        )
    made.load_state_dict(attention.state_dict())  # sets the role
    for name, parameter in attention.named_parameters():
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, parameter)  # frozen and shared ones remain so
    return made.train(attention.training)
