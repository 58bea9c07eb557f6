"""Named points at which traces record or replace tensors.

A tensor of interest passes a point: `role = self.point("role", role)`. Without an active trace, a
point costs one check of an empty tuple. The name of a point is the path of its module and its own
name, such as `encoder.5.self_attention.role`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer import figures
from tp_transformer.data.vocabulary import EOS, PAD, SOS
from tp_transformer.errors import TraceError
from tp_transformer.settings import nearest
from tp_transformer.table import notebook_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Edit = Callable[[Tensor], Tensor]

SOURCE, TARGET = "source", "target"

_changing = threading.Lock()  # held while the traces of modules change


class Trace:
    """The tensors at the chosen points in the last call of the model, by name.

    A trace belongs to the thread that created it: calls in other threads are neither recorded nor
    edited.
    """

    def __init__(self, record: Iterable[str], edits: Mapping[str, Edit]) -> None:
        self._thread = threading.get_ident()
        self._pieces: dict[str, list[Tensor]] = {name: [] for name in record}
        self._edits = dict(edits)
        self._joining = False
        self._tokens: dict[str, list[Tensor]] = {SOURCE: [], TARGET: []}  # ids, for the labels
        self._vocabulary: Sequence[str] = ()

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor at a point: (batch, …, position, last axis).

        `solve` passes the points of the decoder once per token; their positions are joined. If an
        edit replaced the tensor, this is the replacement.
        """
        if name not in self._pieces:
            raise TraceError(
                f"{name!r} is not recorded by this trace; it records {', '.join(self._pieces)}"
            )
        pieces = self._pieces[name]
        if not pieces:
            raise TraceError(f"{name!r} has not been passed yet: call the model inside the trace")
        if len(pieces) == 1:
            return pieces[0]
        # Attention weights have one more key at each step; later keys have weight 0.
        width = max(piece.shape[-1] for piece in pieces)
        return torch.cat([F.pad(piece, (0, width - piece.shape[-1])) for piece in pieces], dim=-2)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"Trace({', '.join(f'{name}: {shape}' for name, shape in self._shapes())})"

    def _repr_html_(self) -> str:
        return notebook_table("Trace", ("name", "shape"), self._shapes())

    def _shapes(self) -> list[tuple[str, str]]:
        """Return the shape of each recorded tensor, or that it has not been passed yet."""
        return [
            (name, str(tuple(self[name].shape)) if pieces else "not passed yet")
            for name, pieces in self._pieces.items()
        ]

    def get(self, name: str) -> Tensor | None:
        """Return the tensor at a point, or None if the point has not been passed."""
        return self[name] if self._pieces.get(name) else None

    def keys(self) -> list[str]:
        """Return the names of the recorded points."""
        return list(self._pieces)

    def items(self) -> list[tuple[str, Tensor]]:
        """Return the recorded tensors with their names."""
        return [(name, self[name]) for name in self._pieces]

    def plot(self, name: str, *, question: int = 0, head: int = 0) -> "Figure":
        """Plot the attention weights of a head, with the tokens of a question, as a heat map.

        Args:
            name: a recorded point such as `encoder.2.self_attention.weights`
            question: the index of the question in the call
            head: the index of the head
        """
        if name.rpartition(".")[2] != "weights":
            raise TraceError(f"{name!r} cannot be plotted: only attention weights can")
        weights = self[name]  # (batch, head, query, key)
        for noun, index, count in zip(
            ("question", "head"), (question, head), weights.shape[:2], strict=True
        ):
            if not 0 <= index < count:
                raise TraceError(f"there are {noun}s 0 to {count - 1}, not {index}")
        in_decoder = name.startswith("decoder.")
        is_cross = name.endswith(".cross_attention.weights")
        queries = self._labels(TARGET if in_decoder else SOURCE, question, weights.shape[2])
        keys = self._labels(
            TARGET if in_decoder and not is_cross else SOURCE, question, weights.shape[3]
        )
        without_padding = weights[question, head, : len(queries), : len(keys)]
        return figures.plot_weights(
            without_padding.detach().float().cpu().numpy(),
            queries,
            keys,
            title=f"{name}, question {question}, head {head}",
            text=f"Rows attend to columns. {figures.TOKENS if self._vocabulary else ''}",
        )

    def _labels(self, side: str, question: int, count: int) -> list[str]:
        """Return the tokens of a question without padding, or numbers if they are not known."""
        pieces = self._tokens[side]
        ids = torch.cat(pieces, dim=1)[question].tolist() if pieces else []
        if len(ids) != count:
            return list(map(str, range(count)))
        labels = []
        for token in (self._vocabulary[index] for index in ids):
            if token == PAD or (token == EOS and side == TARGET):
                break  # after its end token, a row of `solve` only waits for the others
            labels.append({SOS: figures.START, EOS: figures.END}.get(token, token))
        return labels

    def note_tokens(self, side: str, ids: Tensor, vocabulary: Sequence[str]) -> None:
        """Keep the ids (batch, position) that the model reads, as labels of plots."""
        if not self.is_of_this_thread:
            return
        if not self._joining:
            self._tokens[side].clear()
        self._tokens[side].append(ids.detach())
        self._vocabulary = vocabulary

    @property
    def is_of_this_thread(self) -> bool:
        """Whether calls in the current thread are traced."""
        return self._thread == threading.get_ident()

    def wants(self, name: str) -> bool:
        """Whether the named tensor is recorded or edited, and so must be computed."""
        return (name in self._pieces or name in self._edits) and self.is_of_this_thread

    def visit(self, name: str, tensor: Tensor) -> Tensor:
        """Edit and record the tensor at a point, and return it.

        The tensor is copied, so that it is neither a view of a larger tensor nor changed by later
        edits, and receives gradients.
        """
        if not self.wants(name):
            return tensor
        tensor = tensor.clone()
        if name in self._edits:
            tensor = _edited(name, tensor, self._edits[name])
        if name in self._pieces:
            if not self._joining:
                self._pieces[name].clear()
            self._pieces[name].append(tensor)
        return tensor

    def join(self, joining: bool) -> None:
        """Join the tensors of further calls, or keep only those of the last call."""
        self._joining = joining
        if joining:
            for pieces in (*self._pieces.values(), *self._tokens.values()):
                pieces.clear()


class Traced(nn.Module):
    """A module with named points."""

    _traces: tuple[tuple[str, Trace], ...] = ()  # each with the path of this module in it

    def points(self) -> tuple[str, ...]:
        """Return the names of the points of this module."""
        raise NotImplementedError

    def point(self, name: str, tensor: Tensor) -> Tensor:
        """Pass a tensor to active traces, which may record or replace it."""
        for path, trace in self._traces:
            tensor = trace.visit(path + name, tensor)
        return tensor

    def is_traced(self, name: str) -> bool:
        """Whether an active trace records or edits the point."""
        return bool(self._traces) and any(trace.wants(path + name) for path, trace in self._traces)


def submodules(*modules: nn.Module) -> list[nn.Module]:
    """Return modules and all their submodules, as `modules()` does, which takes longer.

    A submodule that is used twice may be there twice.
    """
    all_modules = list(modules)
    for module in all_modules:  # which grows meanwhile
        if module._modules:  # `children()` takes five times as long
            all_modules.extend([child for child in module._modules.values() if child is not None])
    return all_modules


@contextmanager
def joined_steps(module: nn.Module) -> Iterator[bool]:
    """Record all calls in the context as one; yield whether the module is traced."""
    active = set(_active_traces(module))
    for trace in active:
        trace.join(True)
    try:
        yield bool(active)
    finally:
        for trace in active:
            trace.join(False)


def is_traced(module: nn.Module) -> bool:
    """Whether `module` or a submodule has an active trace."""
    return any(True for _ in _active_traces(module))


def _active_traces(module: nn.Module) -> Iterator[Trace]:
    """Yield the traces of the current thread on `module` and its submodules."""
    for child in submodules(module):
        if isinstance(child, Traced) and child._traces:
            yield from (trace for _, trace in child._traces if trace.is_of_this_thread)


def trace_names(module: nn.Module) -> list[str]:
    """Return the names of all points of `module`."""
    return [path + name for path, traced in _traced_modules(module) for name in traced.points()]


@contextmanager
def trace(
    module: nn.Module, *names: str, edit: Mapping[str, Edit] | None = None
) -> Iterator[Trace]:
    """Record the named points of `module`, and apply the functions in `edit`.

    Names may contain wildcards (`encoder.*.self_attention.role`). `module` may be any module that
    contains TP-attention. Traces may be nested; an outer one edits first.
    """
    valid = trace_names(module)
    record = [match for name in names for match in _match(name, valid)]
    active = Trace(record, _edits(edit or {}, valid))
    traced_modules = list(_traced_modules(module))
    with _changing:
        for path, traced in traced_modules:
            traced._traces = (*traced._traces, (path, active))
    try:
        yield active
    finally:
        with _changing:
            for _, traced in traced_modules:
                traced._traces = tuple(entry for entry in traced._traces if entry[1] is not active)


def _traced_modules(module: nn.Module) -> Iterator[tuple[str, Traced]]:
    for path, child in module.named_modules():
        if isinstance(child, Traced):
            yield f"{path}." if path else "", child


def _match(name: str, valid: list[str]) -> list[str]:
    matches = [candidate for candidate in valid if fnmatchcase(candidate, name)]
    if not matches:
        raise TraceError(
            f"there is no trace point {name!r}{nearest(name, valid)}; "
            f"the names are {', '.join(valid)}"
        )
    return matches


def _edits(edit: Mapping[str, Edit], valid: list[str]) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    for name, function in edit.items():
        if not callable(function):
            raise TraceError(f"the edit of {name!r} must be a function of a tensor")
        for match in _match(name, valid):
            if match in edits:
                raise TraceError(f"{match!r} has two edits")
            edits[match] = function
    return edits


def _edited(name: str, tensor: Tensor, edit: Edit) -> Tensor:
    edited: Any = edit(tensor)
    kind = _kind(edited) if isinstance(edited, Tensor) else type(edited).__name__
    if kind != _kind(tensor):
        raise TraceError(f"the edit of {name!r} must return {_kind(tensor)}, not {kind}")
    return edited


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
