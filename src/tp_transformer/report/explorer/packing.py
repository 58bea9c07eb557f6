"""The model in the page: its configuration as JSON, its weights as base64."""

import base64
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tp_transformer.errors import UserError
from tp_transformer.model import checkpoint
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.provenance import Values

BINDINGS = (  # implemented in bindings.js
    *("none", "constant", "hadamard", "residual", "sigmoid", "silu", "value", "dictionary"),
    *("tensor", "low-rank", "convolution"),
)
# Fields of a configuration that engine.js reads, and those that have no effect on answers. All
# other fields must have their default values, those of the paper's model.
READ_FIELDS = {"d_model", "n_heads", "n_layers", "n_positions", "binding", "embedding_binding"}
IRRELEVANT_FIELDS = {"d_ff", "n_vocab", "binding_options", "initialisation", "dropout"}
CHUNK = 3 << 21  # bytes; a multiple of 3, so that only the last chunk is padded


def require_supported(model: AnyModel, folder: str | Path) -> None:
    """Raise if the page cannot compute a model."""
    if reason := _unsupported_reason(model):
        raise UserError(
            f"the explorer does not support {folder}: {reason}; it runs Transformers with the "
            f"bindings {', '.join(BINDINGS)}"
        )


def _unsupported_reason(model: AnyModel) -> str | None:
    if type(model) is not Transformer:
        return f"the model is a {type(model).__name__}"
    if model.config.binding not in BINDINGS:
        return f"its binding is {model.config.binding}"
    for field in dataclasses.fields(TransformerConfig):
        value = getattr(model.config, field.name)
        if field.name not in READ_FIELDS | IRRELEVANT_FIELDS and value != field.default:
            return f"its {field.name} is {value!r}"
    return None


def described(model: AnyModel, folder: str | Path) -> Values:
    """Return the description of a model without its weights, as values for JSON."""
    identified = checkpoint.describe(model, folder)
    return {
        "name": identified["name"],
        "folder": str(folder),
        "sha256": identified["sha256"],
        "step": identified["step"],
        "n_parameters": model.n_parameters,
        "config": {
            **model.config_values(model.config),
            "d_role": model.config.d_role,
            "binds_values": model.config.weightless_binding().binds_values,
        },
        "tokens": list(model.vocabulary.tokens),
        "tokenisation": model.vocabulary.tokenisation,
        "max_answer": model.max_answer,
        "tensors": [
            {"name": name, "shape": list(tensor.shape)}
            for name, tensor in model.state_dict().items()
        ],
    }


def weights(model: AnyModel) -> Iterator[bytes]:
    """Yield the weights in base64: float32, little-endian, all tensors concatenated."""
    rest = b""
    for tensor in model.state_dict().values():
        content = tensor.detach().cpu().float().contiguous().numpy().astype("<f4", copy=False)
        rest += content.tobytes()
        while len(rest) >= CHUNK:
            yield base64.b64encode(rest[:CHUNK])
            rest = rest[CHUNK:]
    yield base64.b64encode(rest)
