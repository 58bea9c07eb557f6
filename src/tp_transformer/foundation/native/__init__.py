"""The C kernels of the package, which are optional: attention within packed rows, cells, decoding.

`hatch_build.py` compiles them during installation, if there is a C compiler for x86. Each has an
implementation in PyTorch that computes the same, and that is used where `library` returns None.
"""

import ctypes
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent
TOO_LITTLE_MEMORY = 1  # returned by a kernel; 0 is success
CAPABILITIES = ("AVX2", "AVX512")  # of processors that the kernels are compiled for


def compiled_file() -> Path:
    """Return the path of the library that belongs to the sources in this folder."""
    sources = sorted((*FOLDER.glob("*.c"), *FOLDER.glob("*.h")))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return FOLDER / f"kernels-{digest[:16]}.so"


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None if they are not there or not for this machine."""
    file = compiled_file()
    if not file.exists() or torch.backends.cpu.get_cpu_capability() not in CAPABILITIES:
        return None
    try:
        return ctypes.CDLL(str(file))
    except OSError:  # compiled for another C library, or on a file system without execution
        return None


def call(name: str, *arguments: Tensor | ctypes.Array[Any] | None) -> None:
    """Call a kernel with the addresses of tensors; raise if it fails.

    The GIL is released during the call.
    """
    kernels = library()
    assert kernels is not None, "the kernels are not compiled"  # noqa: S101
    given = [
        ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, Tensor) else argument
        for argument in arguments
    ]
    problem: int = getattr(kernels, name)(*given)
    if problem == TOO_LITTLE_MEMORY:
        raise MemoryError(f"too little memory for {name}")
    if problem:
        raise IndexError("a token id is not in the vocabulary")


def integers(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return an array of 64-bit integers for a kernel."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
