"""The floating-point operations of a training step, computed from the sizes of a model.

Counted are the multiplications and additions of matrix products, attention included, of the forward
and the backward pass, without padding. Elementwise operations, softmax, norms and the optimizer are
not counted; nor are the products inside a `dictionary` binding of several heads.
"""

from typing import Any

import torch

from tp_transformer.data.vocabulary import Ids, Vocabulary
from tp_transformer.model.checkpoint import AnyModel, from_config
from tp_transformer.model.config import WithoutWeights
from tp_transformer.model.recurrent import LSTM
from tp_transformer.model.transformer import Transformer

# A product of the forward pass has two of the same size in the backward pass: the gradients of both
# factors.
PASSES = 3


def training_flops(model: AnyModel, source_lengths: Ids, target_lengths: Ids) -> float:
    """Return the operations of one training step on rows of these lengths.

    The lengths are numbers of tokens with start and end token. The decoder reads a target without
    its last token.
    """
    n_source, n_target = source_lengths.astype(float), target_lengths.astype(float) - 1
    if isinstance(model, LSTM):
        return _lstm_flops(model, n_source, n_target)
    if isinstance(model, Transformer):
        return _transformer_flops(model, n_source, n_target)
    raise TypeError(f"the operations of the architecture {model.architecture()} are not known")


def config_flops(
    config: Any, source_lengths: Ids, target_lengths: Ids, vocabulary: Vocabulary | None = None
) -> float:
    """Return the same for a model of this configuration, without the memory of its parameters."""
    with WithoutWeights(), torch.device("meta"):
        model = from_config(config, vocabulary)
    return training_flops(model, source_lengths, target_lengths)


def _transformer_flops(model: Transformer, n_source: Any, n_target: Any) -> float:
    config = model.config
    sizes = {name: matrix.numel() for name, matrix in model.named_parameters() if matrix.dim() > 1}
    of_memory = sum(size for name, size in sizes.items() if "memory_proj" in name)
    encoder = sum(size for name, size in sizes.items() if name.startswith("encoder."))
    decoder = sum(size for name, size in sizes.items() if name.startswith("decoder."))
    bound = sizes.get("embedding.role_proj.weight", 0)
    dense = (encoder + of_memory + bound) * n_source.sum()
    dense += (decoder - of_memory + bound + model.n_vocab * config.d_model) * n_target.sum()
    pairs = n_source * n_source + n_target * n_target + n_target * n_source
    attention = 2 * config.d_model * config.n_layers * pairs.sum()  # scores, then fillers
    return float(2 * PASSES * (dense + attention))


def _lstm_flops(model: LSTM, n_source: Any, n_target: Any) -> float:
    """Inputs are one-hot vectors, whose product selects columns: it is not counted."""
    config = model.config
    n_steps = len(n_source) * config.n_thinking + n_source.sum() + n_target.sum()
    output = model.n_vocab * config.d_hidden * n_target.sum()
    return float(2 * PASSES * (4 * config.d_hidden**2 * n_steps + output))
