"""Safe reading of pickles from untrusted sources.

Unpickling can execute arbitrary code. Checkpoints are therefore read by the restricted reader of
torch, and vocabularies by a reader that only creates plain values and inert placeholders.
"""

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import CheckpointError

# A vocabulary of a thousand characters needs about ten thousand. With a hundred thousand, tuples
# can be nested so deeply that hashing them overflows the stack.
MAX_OPCODES = 20_000
VOCAB_BYTES = 2**24  # a vocabulary of characters needs a few thousand
ZIP_START = b"PK\x03\x04"
LEGACY_START = 0x1950A86A20F9469CFC6C  # the first object in files of torch.save before 1.6
CONTAINERS = {
    "__builtin__": {"dict", "frozenset", "list", "set"},  # the name in protocols before 3
    "builtins": {"dict", "frozenset", "list", "set"},
    "collections": {"Counter", "OrderedDict", "defaultdict"},
}


def read_checkpoint(file: Path) -> Any:
    """Read a file of torch.save, in the format before torch 1.6 or in the zip format."""
    with _open(file) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about pickle protocols that it rejects
        try:
            _check_is_stored(opened)
            return torch.load(opened, weights_only=True, map_location="cpu")
        except CheckpointError:
            raise
        except Exception as error:  # a damaged file can raise anything
            asked_for = re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError) and asked_for:
                raise _refused(asked_for[1], "a checkpoint") from error
            raise CheckpointError(
                "the file is damaged, or not a plain checkpoint that torch.save wrote"
            ) from error


def _check_is_stored(file: BinaryIO) -> None:
    """Raise for compressed zip archives, which could unpack to any size.

    torch.save never compresses.
    """
    if file.read(len(ZIP_START)) == ZIP_START:
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise CheckpointError(
                    "the file is a compressed zip archive, which torch.save does not write"
                )
    file.seek(0)


def read_vocabulary(file: Path) -> Vocabulary:
    """Return the tokens of a pickled Vocab of torchtext, in its order."""
    vocab = _read_vocab(file)
    state = vocab.state if isinstance(vocab, _StandIn) else None
    symbols = state.get("itos") if isinstance(state, dict) else None
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise CheckpointError("the file holds no Vocab of torchtext with its list 'itos'")
    try:
        return Vocabulary(tuple(symbols))
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def _read_vocab(file: Path) -> Any:
    """Read a pickled object, written by torch.save in either format or by pickle."""
    with _open(file) as opened:
        content = opened.read(VOCAB_BYTES + 1)
    if len(content) > VOCAB_BYTES:
        raise CheckpointError("the file is too large to be a vocabulary")
    try:
        if content.startswith(ZIP_START):
            content = _pickle_in_zip(content)
        stream = io.BytesIO(content)
        first = _load(stream)
        if first != LEGACY_START:
            return first
        _version, _system, vocab, _storages = (_load(stream) for _ in range(4))
        return vocab
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError("the file is damaged, or not a pickled vocabulary") from error


def _load(stream: io.BytesIO) -> Any:
    """Read the next pickle of a stream, if its number of operations is limited."""
    start = stream.tell()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        is_memo = "PUT" in opcode.name  # an index into a list, which is allocated to that length
        if count > MAX_OPCODES or (is_memo and int(argument or 0) > MAX_OPCODES):
            raise CheckpointError("the file has more operations than a vocabulary")
    stream.seek(start)
    return _VocabReader(stream).load()


def _pickle_in_zip(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        pickled = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        # torch.save never compresses, and stored data cannot unpack to gigabytes.
        if len(pickled) != 1 or pickled[0].compress_type != zipfile.ZIP_STORED:
            raise CheckpointError("the file is a zip archive, but not one that torch.save wrote")
        return archive.read(pickled[0])


class _StandIn:
    """An inert placeholder for a class or function that a pickle names.

    It keeps only the state, which has the attributes of a pickled Vocab.
    """

    state: Any = None

    def _ignore(self, *arguments: Any) -> None:
        pass

    __init__ = __setitem__ = append = extend = add = _ignore

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _VocabReader(pickle.Unpickler):
    """Reads a pickle without calls: each name in it becomes a placeholder or is refused."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a placeholder for a name of torchtext or a container; import nothing."""
        of_torchtext = module == "torchtext.vocab" or module.startswith("torchtext.vocab.")
        # A dotted name is an attribute, such as one of a module imported there.
        if (of_torchtext and "." not in name) or name in CONTAINERS.get(module, ()):
            # A new class each time, because a pickle can set attributes of classes.
            return type("StandIn", (_StandIn,), {})
        raise _refused(f"{module}.{name}", "a vocabulary")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse data outside of the pickle, such as tensors."""
        raise CheckpointError("the file holds tensors, which a vocabulary does not need")


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"the file cannot be read: {reason}") from error


def shown(text: str) -> str:
    """Return a name from a file for messages: on one line, short, without control codes."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


def _refused(name: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"reading the file would run {shown(name)}, which {expected} does not need; it is refused"
    )
