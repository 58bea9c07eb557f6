"""The paper's authors' published checkpoints, as our models (Zenodo record 3532678).

A checkpoint is a dictionary that torch.save wrote; its `model` holds the tensors by name. The
symbols lie in a file of their own, `vocab.pt`: a pickled Vocab of torchtext. Both are pickles, and
reading a pickle can run any program. So the checkpoint is read by torch's restricted reader, and
the vocabulary by one of ours that makes only plain values and stand-ins that do nothing.
"""

import io
import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import CheckpointError
from tp_transformer.model.attention import Attention
from tp_transformer.model.base import WithoutWeights
from tp_transformer.model.layers import sinusoids
from tp_transformer.model.transformer import Transformer, TransformerConfig

Tensors = dict[str, Tensor]  # by the authors' names

SYMBOLS, POSITIONS = "embedding.tok_embedding.weight", "embedding.pe"

# In every cell of a stack: what the authors call our modules.
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
# In every attention: what they call our maps, which depends on the binding.
MAPS = {
    "hadamard": {"query": "W_q", "key": "W_k", "value": "W_v", "role": "W_r", "output": "W_o"},
    "none": {"query": "w_q", "key": "w_k", "value": "w_v", "output": "linear"},
}


def import_checkpoint(
    checkpoint: str | Path, vocab: str | Path, *, n_heads: int = 8
) -> Transformer:
    """The authors' checkpoint as our model, ready to solve, with its symbols in `vocab`'s order.

    The number of heads is the one thing that the files do not tell; the published ones have 8.
    """
    with _about(vocab):
        vocabulary = _vocabulary(_read_vocab(Path(vocab)))
    with _about(checkpoint):
        tensors = _tensors(_read_checkpoint(Path(checkpoint)))
        config = _config(tensors, n_heads)
        if config.n_vocab != len(vocabulary):
            raise CheckpointError(
                f"{SYMBOLS!r} has {config.n_vocab} rows, but {vocab} lists "
                f"{len(vocabulary)} symbols"
            )
        _refuse_other_positions(tensors.pop(POSITIONS, None), config)
        return _model(config, vocabulary, tensors).eval()


@contextmanager
def _about(file: str | Path) -> Iterator[None]:
    """Begin what is said about a file with its name."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"the file cannot be read: {reason}") from error


def _shown(text: str) -> str:
    """A name out of a file as a message can hold it: on one line, short, without control codes."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


# The checkpoint.


def _read_checkpoint(file: Path) -> Any:
    """What torch.save wrote, be it in the format before torch 1.6 or the zip format since."""
    with _open(file) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of other pickle protocols, then refuses them
        try:
            return torch.load(opened, weights_only=True, map_location="cpu")
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            asked_for = re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError) and asked_for:
                raise _refused(asked_for[1], "a checkpoint") from error
            raise CheckpointError(
                "the file is damaged, or not a plain checkpoint that torch.save wrote"
            ) from error


def _refused(name: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"reading the file would run {_shown(name)}, which {expected} does not need; it is refused"
    )


def _tensors(checkpoint: Any) -> Tensors:
    """The model's tensors under the names that they have when trained on one GPU."""
    tensors = checkpoint.get("model") if isinstance(checkpoint, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise CheckpointError("the file holds no 'model' with tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            raise CheckpointError(f"{_shown(name)} is not a plain tensor of real numbers")
    # nn.DataParallel puts this before all names or none.
    several_gpus = all(name.startswith("module.") for name in tensors)
    return {
        name.removeprefix("module.") if several_gpus else name: t for name, t in tensors.items()
    }


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has its numbers: not one of the special kinds that can be saved as well."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and tensor.is_floating_point()
        # Nor one that repeats a few numbers to claim any size it likes.
        and 0 < tensor.nbytes <= tensor.untyped_storage().nbytes()
    )


def _config(tensors: Tensors, n_heads: int) -> TransformerConfig:
    """The shape of the model that the tensors come from."""
    depths = {stack: _depth(tensors, stack) for stack in CELLS}
    if depths["encoder"] != depths["decoder"]:
        raise CheckpointError(
            f"the encoder has {depths['encoder']} layers and the decoder {depths['decoder']}; "
            f"only models with as many in both are supported"
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
    """The size that most tensors of a kind have, so that an odd one is the one refused later."""
    sizes = Counter(t.shape[axis] for name, t in tensors.items() if kind in name and t.dim() > axis)
    if not sizes:
        raise CheckpointError(f"the model lacks {kind!r}, or has it with fewer axes")
    return sizes.most_common(1)[0][0]


def _refuse_other_positions(positions: Tensor | None, config: TransformerConfig) -> None:
    """Positions are not learned, so they are not imported: they must be those of our model."""
    if positions is None:
        raise CheckpointError(f"the model lacks {POSITIONS!r}")
    _refuse_shape(POSITIONS, positions, torch.Size((1, config.n_positions, config.d_model)))
    # The authors computed them in float32, which is off by up to 1e-5 at position 200.
    ours = sinusoids(config.n_positions, config.d_model)
    if not torch.allclose(positions[0].double(), ours, rtol=0.0, atol=1e-4):
        raise CheckpointError(f"{POSITIONS!r} does not hold the sinusoids that the paper uses")


def _model(config: TransformerConfig, vocabulary: Vocabulary, tensors: Tensors) -> Transformer:
    """A model with the authors' tensors, each in its place."""
    with WithoutWeights():
        with torch.device("meta"):  # which takes no memory, whatever sizes a file makes us believe
            places = _places(Transformer(config, vocabulary))
        for problem, names in (
            ("lacks", places.keys() - tensors.keys()),
            ("has an unknown tensor", tensors.keys() - places.keys()),
        ):
            if names:
                raise CheckpointError(f"the model {problem} {_shown(min(names))}")
        for name, place in places.items():
            _refuse_shape(name, tensors[name], place.shape)
        model = Transformer(config, vocabulary)
    for name, place in _places(model).items():
        place.copy_(tensors[name])
    return model


def _refuse_shape(name: str, tensor: Tensor, fitting: torch.Size) -> None:
    if tensor.shape != fitting:
        raise CheckpointError(
            f"{name!r} has shape {tuple(tensor.shape)}, where {tuple(fitting)} would fit"
        )


def _places(model: Transformer) -> Tensors:
    """Where each of the authors' tensors belongs: the model's parameters under their names."""
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
    for name, (weight, bias) in module.maps().items():  # fused with us, and not with the authors
        yield f"{maps[name]}.weight", weight
        if bias is not None:
            yield f"{maps[name]}.bias", bias


# The vocabulary.

VOCAB_BYTES = 2**24  # a vocabulary of characters takes some thousands
ZIP_START = b"PK\x03\x04"
LEGACY_START = 0x1950A86A20F9469CFC6C  # what torch.save pickled first before torch 1.6
CONTAINERS = {
    "__builtin__": {"dict", "frozenset", "list", "set"},  # as protocols before 3 spell it
    "builtins": {"dict", "frozenset", "list", "set"},
    "collections": {"Counter", "OrderedDict", "defaultdict"},
}


def _vocabulary(vocab: Any) -> Vocabulary:
    state = vocab.state if isinstance(vocab, _StandIn) else None
    symbols = state.get("itos") if isinstance(state, dict) else None
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise CheckpointError("the file holds no Vocab of torchtext with its list 'itos'")
    for symbol in symbols:
        is_special = re.fullmatch(r"<[^<>]+>", symbol)
        if not symbol.isprintable() or not (len(symbol) == 1 or is_special):
            raise CheckpointError(
                f"the symbol {_shown(symbol)} is neither a character nor a name like <pad>"
            )
    try:
        return Vocabulary(tuple(symbols))
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def _read_vocab(file: Path) -> Any:
    """What was pickled into a file: by torch.save in either of its formats, or by itself."""
    with _open(file) as opened:
        content = opened.read(VOCAB_BYTES + 1)
    if len(content) > VOCAB_BYTES:
        raise CheckpointError("the file is too large to be a vocabulary")
    try:
        if content.startswith(ZIP_START):
            content = _pickle_in_zip(content)
        stream = io.BytesIO(content)
        first = _VocabReader(stream).load()
        if first != LEGACY_START:
            return first
        _version, _system, vocab, _storages = (_VocabReader(stream).load() for _ in range(4))
        return vocab
    except CheckpointError:
        raise
    except Exception as error:  # what a damaged pickle raises depends on where it is damaged
        raise CheckpointError("the file is damaged, or not a pickled vocabulary") from error


def _pickle_in_zip(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        # torch.save never compresses, and what is not compressed cannot unpack to gigabytes.
        if len(found) != 1 or found[0].compress_type != zipfile.ZIP_STORED:
            raise CheckpointError("the file is a zip archive, but not one that torch.save wrote")
        return archive.read(found[0])


class _StandIn:
    """Stands for a class or function that a pickle names: takes what is done to it, does nothing.

    Only the state is kept, where a pickled Vocab has its attributes.
    """

    state: Any = None

    def _ignore(self, *arguments: Any) -> None:
        pass

    __init__ = __setitem__ = append = extend = add = _ignore

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _VocabReader(pickle.Unpickler):
    """Reads a pickle in which nothing can be called: every name in it is a stand-in, or refused."""

    def find_class(self, module: str, name: str, /) -> Any:
        """A stand-in for something of torchtext's or for a container; nothing is imported."""
        of_torchtext = module == "torchtext.vocab" or module.startswith("torchtext.vocab.")
        # A dotted name means an attribute of something there, such as of a module it imported.
        if (of_torchtext and "." not in name) or name in CONTAINERS.get(module, ()):
            # A new class each time: a pickle can set attributes of the classes that it names.
            return type("StandIn", (_StandIn,), {})
        raise _refused(f"{module}.{name}", "a vocabulary")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse what lies outside the pickle, such as tensors."""
        raise CheckpointError("the file holds tensors, which a vocabulary does not need")
