"""Conversion of the checkpoints published by the authors of the paper (Zenodo record 3532678).

A checkpoint is a dictionary written by torch.save, whose `model` has the tensors by name. The
tokens are in a separate file, `vocab.pt`: a pickled Vocab of torchtext.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import CheckpointError
from tp_transformer.interop.pickles import read_checkpoint, read_vocabulary, shown
from tp_transformer.model.attention import Attention
from tp_transformer.model.config import TransformerConfig, WithoutWeights
from tp_transformer.model.layers import sinusoids
from tp_transformer.model.transformer import Transformer

Tensors = dict[str, Tensor]  # by the authors' names

SYMBOLS, POSITIONS = "embedding.tok_embedding.weight", "embedding.pe"

# Names of the authors for the modules of a cell.
CELLS = {
    "encoder": {
        "layernorm1": "self_attention_norm",
        "MHA": "self_attention",
        "layernorm2": "feed_forward_norm",
        "densefilter.linear1": "feed_forward.expand",
        "densefilter.linear2": "feed_forward.contract",
        "layernorm3": "output_norm",
    },
    "decoder": {
        "layernorm1": "self_attention_norm",
        "selfAttn": "self_attention",
        "layernorm2": "cross_attention_norm",
        "encAttn": "cross_attention",
        "layernorm3": "feed_forward_norm",
        "densefilter.linear1": "feed_forward.expand",
        "densefilter.linear2": "feed_forward.contract",
        "layernorm4": "output_norm",
    },
}
# Names of the authors for the maps of attention, by binding.
MAPS = {
    "hadamard": {"query": "W_q", "key": "W_k", "value": "W_v", "role": "W_r", "output": "W_o"},
    "none": {"query": "w_q", "key": "w_k", "value": "w_v", "output": "linear"},
}


def import_checkpoint(
    checkpoint: str | Path, vocab: str | Path, *, n_heads: int = 8
) -> Transformer:
    """Convert a checkpoint of the authors to a model in evaluation mode, with their token ids.

    The files do not contain the number of heads; the published models have 8.
    """
    with _about(vocab):
        vocabulary = read_vocabulary(Path(vocab))
    with _about(checkpoint):
        tensors = _tensors(read_checkpoint(Path(checkpoint)))
        config = _config(tensors, n_heads)
        if config.n_vocab != len(vocabulary):
            raise CheckpointError(
                f"{SYMBOLS!r} has {config.n_vocab} rows, but {vocab} lists {len(vocabulary)} tokens"
            )
        _check_positions(tensors.pop(POSITIONS, None), config)
        return _model(config, vocabulary, tensors).eval()


@contextmanager
def _about(file: str | Path) -> Iterator[None]:
    """Prefix error messages with the name of a file."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _tensors(checkpoint: Any) -> Tensors:
    """Return the tensors of a model, without the prefix of training on several GPUs."""
    tensors = checkpoint.get("model") if isinstance(checkpoint, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise CheckpointError("the file holds no 'model' with tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            raise CheckpointError(f"{shown(name)} is not a plain tensor of real numbers")
    # nn.DataParallel adds this prefix to all names.
    several_gpus = all(name.startswith("module.") for name in tensors)
    return {
        name.removeprefix("module.") if several_gpus else name: t for name, t in tensors.items()
    }


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is dense, in CPU memory and of floating point."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and tensor.is_floating_point()
        # Excludes expanded tensors, which can claim any size.
        and 0 < tensor.nbytes <= tensor.untyped_storage().nbytes()
    )


def _config(tensors: Tensors, n_heads: int) -> TransformerConfig:
    """Return the configuration of the model from the shapes of its tensors."""
    depths = {stack: _depth(tensors, stack) for stack in CELLS}
    if depths["encoder"] != depths["decoder"]:
        raise CheckpointError(
            f"the encoder has {depths['encoder']} layers and the decoder {depths['decoder']}; "
            f"only models with equal numbers are supported"
        )
    return TransformerConfig(
        d_model=_size(tensors, "layernorm"),
        d_ff=_size(tensors, "densefilter.linear1"),
        n_heads=n_heads,
        n_layers=depths["encoder"],
        n_vocab=_size(tensors, SYMBOLS),
        n_positions=_size(tensors, POSITIONS, axis=1),
        binding="hadamard" if any(".W_" in name for name in tensors) else "none",
        embedding_binding=any(name.startswith("embedding.linear.") for name in tensors),
    )


def _depth(tensors: Tensors, stack: str) -> int:
    matches = (re.match(rf"{stack}\.layers\.(\d+)\.", name) for name in tensors)
    return len({match[1] for match in matches if match})


def _size(tensors: Tensors, kind: str, axis: int = 0) -> int:
    """Return the most common size of tensors of a kind; others are rejected later."""
    sizes = Counter(t.shape[axis] for name, t in tensors.items() if kind in name and t.dim() > axis)
    if not sizes:
        raise CheckpointError(f"the model lacks {kind!r}, or has it with fewer axes")
    return sizes.most_common(1)[0][0]


def _check_positions(positions: Tensor | None, config: TransformerConfig) -> None:
    """Raise if the positions, which are not learned, differ from those of the model."""
    if positions is None:
        raise CheckpointError(f"the model lacks {POSITIONS!r}")
    _check_shape(POSITIONS, positions, torch.Size((1, config.n_positions, config.d_model)))
    # The authors computed them in float32, with errors of up to 1e-5 at position 200.
    ours = sinusoids(config.n_positions, config.d_model)
    if not torch.allclose(positions[0].double(), ours, rtol=0.0, atol=1e-4):
        raise CheckpointError(f"{POSITIONS!r} does not hold the sinusoids that the paper uses")


def _model(config: TransformerConfig, vocabulary: Vocabulary, tensors: Tensors) -> Transformer:
    """Return a model with the tensors of the authors."""
    with WithoutWeights():
        with torch.device("meta"):  # takes no memory, whatever sizes a file claims
            parameters = _parameters_of(Transformer(config, vocabulary))
        for problem, names in (
            ("lacks", parameters.keys() - tensors.keys()),
            ("has an unknown tensor", tensors.keys() - parameters.keys()),
        ):
            if names:
                raise CheckpointError(f"the model {problem} {shown(min(names))}")
        for name, parameter in parameters.items():
            _check_shape(name, tensors[name], parameter.shape)
        model = Transformer(config, vocabulary)
    for name, parameter in _parameters_of(model).items():
        parameter.copy_(tensors[name])
    return model


def _check_shape(name: str, tensor: Tensor, fitting: torch.Size) -> None:
    if tensor.shape != fitting:
        raise CheckpointError(
            f"{name!r} has shape {tuple(tensor.shape)}, where {tuple(fitting)} would fit"
        )


def _parameters_of(model: Transformer) -> Tensors:
    """Return the parameters of a model by the names of the authors."""
    modules: dict[str, nn.Module] = {"embedding.tok_embedding": model.embedding.symbols}
    if model.embedding.role_proj is not None:
        modules["embedding.linear"] = model.embedding.role_proj
    for stack, names in CELLS.items():
        for layer, cell in enumerate(model.get_submodule(stack).children()):
            for theirs, ours in names.items():
                modules[f"{stack}.layers.{layer}.{theirs}"] = cell.get_submodule(ours)
    maps = MAPS[model.config.binding]
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in modules.items()
        for name, tensor in _parameters(module, maps)
    }


def _parameters(module: nn.Module, maps: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(module, Attention):
        yield from ((name, parameter.detach()) for name, parameter in module.named_parameters())
        return
    for name, (weight, bias) in module.maps().items():  # fused here, but not by the authors
        yield f"{maps[name]}.weight", weight
        if bias is not None:
            yield f"{maps[name]}.bias", bias
