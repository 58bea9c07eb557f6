"""Detection of changes of modules, in a fraction of the time of a check of each attribute."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from tp_transformer.model.trace import parts

_FORM = attrgetter("dtype", "shape", "is_cpu")


class Snapshot:
    """The attributes of modules and all their parts, and where tensors are in memory.

    Numbers that change in place are no change. The modules and their parameters stay in memory as
    long as the snapshot.
    """

    def __init__(self, modules: Sequence[nn.Module], tensors: Sequence[Tensor]) -> None:
        self._modules, self._tensors = list(modules), list(tensors)
        self._parts = [part for module in modules for part in parts(module)]
        self._kinds = [*map(type, self._parts)]
        self._attributes = [dict(vars(part)) for part in self._parts]
        # Parameters, submodules and hooks; most are empty, which is faster to check.
        dicts = [
            value for own in self._attributes for value in own.values() if isinstance(value, dict)
        ]
        self._empty = [one for one in dicts if not one]
        self._filled = [one for one in dicts if one]
        self._content = [dict(filled) for filled in self._filled]
        self._forms = _forms(self._tensors)

    def holds(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are the same modules, and nothing has been set, added or removed."""
        try:
            # Comparisons of containers, which start with identity, are faster than loops. The parts
            # are the same if the attributes are, because submodules are among them.
            return (
                list(modules) == self._modules
                and [*map(type, self._parts)] == self._kinds
                and [*map(vars, self._parts)] == self._attributes
                and not any(self._empty)
                and self._filled == self._content
                and _forms(self._tensors) == self._forms
            )
        except (RuntimeError, TypeError, ValueError):
            return False  # a tensor or an array was replaced: their equality is not a truth value


def _forms(tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
    """Return types, addresses and shapes; lists of each are faster than one list of tuples."""
    return (
        [*map(type, tensors)],
        [*map(Tensor.data_ptr, tensors)],
        [*map(Tensor.is_contiguous, tensors)],
        [*map(_FORM, tensors)],
    )
