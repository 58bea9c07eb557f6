"""The library of C kernels: where it is, how its functions are called.

`hatch_build.py` compiles it during installation, if there is a C compiler for x86.
"""

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "native"
CAPABILITIES = ("AVX2", "AVX512")  # of processors that the kernels are compiled for
KINDS = {torch.float32: 0, torch.bfloat16: 1}  # numbers that kernels of training read
TOO_LITTLE_MEMORY = 1  # returned by a kernel; 0 is success


def compiled_file() -> Path:
    """Return the path of the library that belongs to the sources in this folder."""
    sources = sorted((*FOLDER.glob("*.c"), *FOLDER.glob("*.h")))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return FOLDER / f"kernels-{digest[:16]}.so"


@cache
def load() -> ctypes.CDLL | None:
    """Return the kernels, or None if they are switched off, absent or not for this machine."""
    file = compiled_file()
    if os.environ.get("TPT_OPS") == "0" or not file.exists():
        return None
    if torch.backends.cpu.get_cpu_capability() not in CAPABILITIES:
        return None
    try:
        return ctypes.CDLL(str(file))
    except OSError:  # compiled for another C library, or on a file system without execution
        return None


Argument = Tensor | npt.NDArray[Any] | ctypes.Structure | ctypes.Array[Any] | int | None


def call(name: str, *arguments: Argument) -> None:
    """Call a kernel; raise if it fails. Arrays, tensors and structures are passed by address.

    The GIL is released during the call.
    """
    kernels = load()
    assert kernels is not None, "the kernels are not compiled"  # noqa: S101
    problem: int = getattr(kernels, name)(*map(_passed, arguments))
    if problem == TOO_LITTLE_MEMORY:
        raise MemoryError(f"too little memory for {name}")
    if problem:
        raise IndexError("a token id is not in the vocabulary")


def _passed(argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return (
        argument.ctypes.data_as(ctypes.c_void_p) if isinstance(argument, np.ndarray) else argument
    )


def is_plain(tensor: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether a kernel can read the memory of a tensor with one of these types.

    Subclasses and the tensors of `torch.export`, for example, have no memory.
    """
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_cpu and tensor.dtype in dtypes


def runs_as_written() -> bool:
    """Whether torch runs the operations of Python as they are, now.

    Otherwise it records them for a graph, or a mode or a transform observes or replaces them (vmap,
    forward-mode derivatives, fake tensors, counters of operations), which must see each of them.
    """
    # Torch has no public API for most of this.
    return not (
        torch.compiler.is_compiling()  # also when exporting
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


Fields = list[tuple[str, Any]]


def _integers(names: str) -> Fields:
    return [(name, ctypes.c_int64) for name in names.split()]


def _pointers(names: str) -> Fields:
    return [(name, ctypes.c_void_p) for name in names.split()]


# The structures of interface.h, which describes their fields; a test compares the two.


class Affine(ctypes.Structure):
    """An affine map, or the gain and the bias of a normalisation."""

    _fields_: ClassVar[Fields] = _pointers("weight bias int8 panels")


class Layer(ctypes.Structure):
    """The maps of a cell."""

    _fields_: ClassVar[Fields] = [
        ("norms", Affine * 4),
        *((name, Affine) for name in ("self_in", "self_out", "cross_in", "cross_out")),
        *(("expand", Affine), ("contract", Affine)),
    ]


class EmbeddingWeights(ctypes.Structure):
    """The weights of an embedding."""

    _fields_: ClassVar[Fields] = [("role", Affine), *_pointers("symbols positions")]


class HeadsView(ctypes.Structure):
    """States (head, position, d_head), of which the vectors are contiguous."""

    _fields_: ClassVar[Fields] = [*_pointers("data"), *_integers("head position")]

    @classmethod
    def of(cls, states: Tensor) -> "HeadsView":
        """Return the view of states (1, head, position, d_head)."""
        return cls(states.data_ptr(), *states.stride()[1:3])


class AttentionCall(ctypes.Structure):
    """Attention within packed rows, or its gradient."""

    _fields_: ClassVar[Fields] = [
        *((name, HeadsView) for name in ("query", "key", "value", "filler", "d_query", "d_key")),
        *(("d_value", HeadsView), ("gradient", HeadsView)),
        *_pointers("log_sum query_ends key_ends"),
        *_integers("n_rows n_heads d_head kind causal most_keys"),
    ]


class CellsCall(ctypes.Structure):
    """All cells of an encoder or a decoder."""

    _fields_: ClassVar[Fields] = [
        *_integers("n_rows n_layers n_heads d_head d_ff binds n_threads"),
        *_pointers("layers memory ends memory_ends state"),
    ]


class Step(ctypes.Structure):
    """A step of the decoder."""

    _fields_: ClassVar[Fields] = [
        *_integers("n_rows n_questions n_layers n_heads d_head d_ff n_vocab position room binds"),
        *_integers("n_source n_threads n_blocks"),
        *_pointers("embedding layers memory maps source starts lengths"),
        *_integers("cache_rows"),
        *_pointers("cache cache_row previous logits"),
    ]


STRUCTURES = {
    **{"Affine": Affine, "Layer": Layer, "Embedding": EmbeddingWeights, "View": HeadsView},
    **{"Attention": AttentionCall, "Cells": CellsCall, "Step": Step},
}
