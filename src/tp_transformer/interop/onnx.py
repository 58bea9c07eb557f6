"""ONNX: the encoder, and one step of the decoder with its cache, as graphs.

Both graphs are exported from the modules of the model. `encoder.onnx` computes the keys and values
of questions once; `decoder.onnx` computes the logits of the next token, and the keys and values of
the answers so far:

    encoder: source                                     -> memory_key, memory_value, memory_mask
    decoder: previous, key, value, and these three      -> logits, next_key, next_value

Sizes: source (batch, source); previous (batch); logits (batch, n_vocab); keys and values (layer,
batch, head, position, d_head), with no positions before the first step.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tp_transformer.errors import FolderError, SettingsError, reason
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.folder import CONFIG, VOCABULARY, write_vocabulary
from tp_transformer.model.search import DecoderState, memory_mask
from tp_transformer.model.solver import evaluating
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.files import atomic_write, refuse_other_content, write_json

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
MEMORY = ("memory_key", "memory_value", "memory_mask")


@dataclass
class GrowingCache:
    """The keys and values of one layer as tensors, without buffers, for graphs."""

    key: Tensor
    value: Tensor

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.key.shape[2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new positions; return those of all positions."""
        self.key, self.value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        return self.key, self.value


class EncoderGraph(nn.Module):
    """From questions to the keys and values that the decoder attends to."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode questions (batch, source), padded on the right."""
        memory = self.model.encode(source)
        pairs = [cell.cross_attention.remember(memory.state) for cell in self.model.decoder_cells]
        keys, values = (torch.stack(each) for each in zip(*pairs, strict=True))
        return keys, values, memory_mask(memory.layout.filled, memory.state.dtype)


class StepGraph(nn.Module):
    """From one token of each answer to the logits of the next."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        previous: Tensor,
        key: Tensor,
        value: Tensor,
        memory_key: Tensor,
        memory_value: Tensor,
        memory_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, and keys and values with one more position."""
        caches = list(map(GrowingCache, key.unbind(), value.unbind()))
        memory = list(zip(memory_key.unbind(), memory_value.unbind(), strict=True))
        logits = self.model.step(previous, DecoderState(memory, memory_mask, caches))
        keys, values = ([each.key for each in caches], [each.value for each in caches])
        return logits, torch.stack(keys), torch.stack(values)


def as_transformer(model: AnyModel) -> Transformer:
    """Return the model; raise if it is not a Transformer, the only kind that can be exported."""
    if not isinstance(model, Transformer):
        raise SettingsError(
            f"only Transformers can be exported, not the architecture {model.architecture()}"
        )
    return model


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `folder` on success; that must be new or empty."""
    refuse_other_content(folder, "the export", is_begun=False)
    try:
        with atomic_write(folder) as unfinished:
            unfinished.mkdir()
            yield unfinished
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {reason(error)}") from error


def export_onnx(model: AnyModel, folder: str | Path) -> None:
    """Write encoder.onnx, decoder.onnx, vocabulary.json and config.json to a new folder."""
    transformer = as_transformer(model)
    with new_folder(Path(folder)) as unfinished, evaluating(transformer), torch.no_grad():
        _export(transformer, unfinished)
        write_vocabulary(unfinished / VOCABULARY, transformer.vocabulary)
        config = transformer.config_values(transformer.config)
        write_json(unfinished / CONFIG, {**config, "max_answer": transformer.max_answer})


def _export(model: Transformer, folder: Path) -> None:
    """Write both graphs; the example of the second is the output of the first."""
    batch = torch.export.Dim("batch", max=2**20)
    source = torch.export.Dim("source", max=model.n_positions)
    past = torch.export.Dim("past", max=model.n_positions - 1)
    device = model.embedding.symbols.weight.device
    ids = torch.full((2, 3), model.vocabulary.eos, device=device)
    memory = EncoderGraph(model)(ids)  # also computes the positions in the type of the weights
    n_layers, n_heads, d_head = memory[0].shape[0], memory[0].shape[2], memory[0].shape[4]
    keys = memory[0].new_zeros(n_layers, 2, n_heads, 2, d_head)
    kept = {1: batch, 3: past}
    remembered = {1: batch, 3: source}
    _write_graph(
        EncoderGraph(model),
        {"source": (ids, {0: batch, 1: source})},
        MEMORY,
        folder / ENCODER,
    )
    _write_graph(
        StepGraph(model),
        {
            "previous": (ids[:, 0], {0: batch}),
            "key": (keys, kept),
            "value": (keys.clone(), kept),
            "memory_key": (memory[0], remembered),
            "memory_value": (memory[1], remembered),
            "memory_mask": (memory[2], {0: batch, 3: source}),
        },
        ("logits", "next_key", "next_value"),
        folder / DECODER,
    )


def _write_graph(
    graph: EncoderGraph | StepGraph,
    inputs: dict[str, tuple[Tensor, Any]],
    outputs: Sequence[str],
    file: Path,
) -> None:
    """Export a module; `inputs` has an example of each input and its dimensions that vary."""
    try:
        import onnxscript  # noqa: F401, which torch imports late
    except ImportError as error:
        raise SettingsError("this needs onnx: pip install 'tp-transformer[onnx]'") from error
    examples = tuple(example for example, _ in inputs.values())
    varying = tuple(sizes for _, sizes in inputs.values())
    try:
        with _quiet():
            program = torch.export.export(graph, examples, dynamic_shapes=varying, strict=False)
            torch.onnx.export(
                program,
                f=file,
                input_names=list(inputs),
                output_names=list(outputs),
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # a binding may be anything
        binding = graph.model.config.binding
        why = str(error).strip().partition("\n")[0]
        raise SettingsError(f"the {binding} binding cannot be exported to ONNX: {why}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of the exporter about itself and about libraries that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
