"""Other people's pickles, read without running what they bring along.

Reading a pickle can run any program. So a checkpoint is read by torch's restricted reader, and a
vocabulary by one of ours that makes only plain values and stand-ins that do nothing.
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
from tp_transformer.foundation.errors import CheckpointError

# A vocabulary of a thousand characters takes about ten thousand. A hundred thousand can nest tuples
# so deeply that hashing them overflows the stack.
MAX_OPCODES = 20_000
VOCAB_BYTES = 2**24  # a vocabulary of characters takes some thousands
ZIP_START = b"PK\x03\x04"
LEGACY_START = 0x1950A86A20F9469CFC6C  # what torch.save pickled first before torch 1.6
CONTAINERS = {
    "__builtin__": {"dict", "frozenset", "list", "set"},  # as protocols before 3 spell it
    "builtins": {"dict", "frozenset", "list", "set"},
    "collections": {"Counter", "OrderedDict", "defaultdict"},
}


def read_checkpoint(file: Path) -> Any:
    """What torch.save wrote, be it in the format before torch 1.6 or the zip format since."""
    with _open(file) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of other pickle protocols, then refuses them
        try:
            _refuse_compressed(opened)
            return torch.load(opened, weights_only=True, map_location="cpu")
        except CheckpointError:
            raise
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            asked_for = re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError) and asked_for:
                raise _refused(asked_for[1], "a checkpoint") from error
            raise CheckpointError(
                "the file is damaged, or not a plain checkpoint that torch.save wrote"
            ) from error


def _refuse_compressed(file: BinaryIO) -> None:
    """Refuse zip archives that torch.save did not write: it never compresses.

    What is compressed could unpack to any size.
    """
    if file.read(len(ZIP_START)) == ZIP_START:
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise CheckpointError(
                    "the file is a compressed zip archive, which torch.save does not write"
                )
    file.seek(0)


def read_vocabulary(file: Path) -> Vocabulary:
    """The symbols of a pickled Vocab of torchtext, in its order."""
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
    """What was pickled into a file: by torch.save in either of its formats, or by itself."""
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
    except Exception as error:  # what a damaged pickle raises depends on where it is damaged
        raise CheckpointError("the file is damaged, or not a pickled vocabulary") from error


def _load(stream: io.BytesIO) -> Any:
    """The next pickle of a stream, after a look at how much it would do."""
    start = stream.tell()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        is_memo = "PUT" in opcode.name  # numbers a place in a list that is made that long
        if count > MAX_OPCODES or (is_memo and int(argument or 0) > MAX_OPCODES):
            raise CheckpointError("the file does more than a vocabulary needs; it is refused")
    stream.seek(start)
    return _VocabReader(stream).load()


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


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"the file cannot be read: {reason}") from error


def shown(text: str) -> str:
    """A name out of a file as a message can hold it: on one line, short, without control codes."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


def _refused(name: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"reading the file would run {shown(name)}, which {expected} does not need; it is refused"
    )
