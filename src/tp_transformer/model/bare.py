"""Copies of modules without the overhead of `nn.Module.__call__`, for decoding.

Most of the time of a decoding step of a single question is spent in Python: looking up submodules
and parameters, and checking for hooks. A bare copy of a module shares its parameters and runs the
`forward` of its class, with all lookups done once.
"""

from functools import cache
from typing import Any, TypeVar

from torch import nn

from tp_transformer.model.trace import Traced, parts

M = TypeVar("M", bound=nn.Module)


def bare(module: M) -> M:
    """Return a copy of a module for inference, or the module itself if a copy could differ.

    A module that is in training mode or observed is returned unchanged.
    """
    if is_observed(module) or any(part.training for part in module.modules()):
        return module
    return _copy(module)


def is_observed(module: nn.Module) -> bool:
    """Whether a trace, a hook or a `forward` set on an instance sees the tensors of a call."""
    return any(
        # Torch has no public API for this.
        part._forward_hooks
        or part._forward_pre_hooks
        or "forward" in vars(part)
        or (isinstance(part, Traced) and part._traces)
        for part in parts(module)
    )


def _copy(module: M) -> M:
    kind: Any = type(module)
    copied: M = object.__new__(_bare_class(kind))
    # In the dictionary of the instance, which is looked up first.
    copied.__dict__.update(
        vars(module)
        | dict(module.named_parameters(recurse=False))
        | dict(module.named_buffers(recurse=False))
        | {name: _copy(_without_dropout(child)) for name, child in module.named_children()}
    )
    return copied


def _without_dropout(module: nn.Module) -> nn.Module:
    return nn.Identity() if isinstance(module, nn.Dropout) else module


@cache
def _bare_class(kind: type[Any]) -> type[Any]:
    return type(f"Bare{kind.__name__}", (kind,), {"__call__": kind.forward})
