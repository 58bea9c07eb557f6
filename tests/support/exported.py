"""Our models' parameters in the layout of the authors' checkpoints, which `reference` reads."""

from torch import Tensor, nn

from tp_transformer.model.attention import Attention
from tp_transformer.model.layers import DecoderCell, EncoderCell
from tp_transformer.model.transformer import Transformer

MAPS = {"query": "W_q", "key": "W_k", "value": "W_v", "role": "W_r", "output": "W_o"}
OWN = {"filler_projection": "M", "role_projection": "N", "role": "C", "roles": "R"}  # of bindings


def attention_parameters(attention: Attention, prefix: str = "") -> dict[str, Tensor]:
    parameters = {}
    for name, (weight, bias) in attention.maps().items():
        parameters |= {f"{prefix}{MAPS[name]}.weight": weight}
        if bias is not None:
            parameters |= {f"{prefix}{MAPS[name]}.bias": bias}
    for name, tensor in attention.binding.named_parameters():
        parameters[prefix + OWN[name]] = tensor.detach()
    return parameters


def cell_parameters(cell: EncoderCell | DecoderCell, prefix: str = "") -> dict[str, Tensor]:
    own: dict[str, Tensor] = {}
    norms = [cell.self_attention_norm]
    if isinstance(cell, DecoderCell):
        own |= attention_parameters(cell.self_attention, f"{prefix}selfAttn.")
        own |= attention_parameters(cell.cross_attention, f"{prefix}encAttn.")
        norms.append(cell.cross_attention_norm)
    else:
        own |= attention_parameters(cell.self_attention, f"{prefix}MHA.")
    norms += [cell.feed_forward_norm, cell.output_norm]
    for number, norm in enumerate(norms, 1):
        own |= module_parameters(norm, f"{prefix}layernorm{number}.")
    own |= module_parameters(cell.feed_forward.expand, f"{prefix}densefilter.linear1.")
    own |= module_parameters(cell.feed_forward.contract, f"{prefix}densefilter.linear2.")
    return own


def module_parameters(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor.detach() for name, tensor in module.named_parameters()}


def model_parameters(model: Transformer) -> dict[str, Tensor]:
    own = {"embedding.tok_embedding.weight": model.embedding.symbols.weight.detach()}
    if model.embedding.role_proj is not None:
        own |= module_parameters(model.embedding.role_proj, "embedding.linear.")
    for side, cells in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, cell in enumerate(cells):
            own |= cell_parameters(cell, f"{side}.layers.{number}.")
    return own
