"""Modules for many small calls: the same forward pass without the cost of `nn.Module.__call__`.

Most of a decoding step of a single question is Python: looking up submodules and parameters, and
asking every module for hooks. A bare copy of a module shares its parameters and runs the `forward`
of its class, whatever class that is, with everything looked up once.
"""

from functools import cache
from typing import Any, TypeVar

from torch import nn

from tp_transformer.model.trace import Traced

M = TypeVar("M", bound=nn.Module)


def bare(module: M) -> M:
    """A copy of a module for inference, or the module itself where that would change something.

    A module that is in training or observed is returned as it is.
    """
    if is_observed(module) or any(part.training for part in module.modules()):
        return module
    return _copy(module)


def is_observed(module: nn.Module) -> bool:
    """Whether a trace, a hook or a `forward` set on an instance sees the tensors of a call."""
    return any(
        # Torch has no public way to ask for hooks.
        part._forward_hooks
        or part._forward_pre_hooks
        or "forward" in vars(part)
        or (isinstance(part, Traced) and part._traces)
        for part in module.modules()
    )


def _copy(module: M) -> M:
    kind: Any = type(module)
    copied: M = object.__new__(_bare_class(kind))
    # Into the instance's own dictionary, where attributes are found first.
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
