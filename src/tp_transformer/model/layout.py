"""The layouts of a batch: how its rows are arranged in a tensor.

`Padded` places rows side by side and pads them on the right; `Packed` concatenates them, so that
nothing is computed for padding. A layout owns the positions of its tokens, determines which
positions may attend to which (a `Pattern`), and computes attention accordingly. All other parts of
a model transform each position separately and are the same for both layouts, whose methods are the
same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from inspect import signature
from typing import Self, TypeAlias, Union

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.ops.functions import can_attend, packed_attention

CPU = torch.device("cpu")
ROWS_AT_ONCE = 32  # packed rows of similar lengths that attend together without the kernel


class Pattern(ABC):
    """Which queries may attend to which keys, and how attention is computed for them.

    Queries, keys and values are (batch, head, position, d_head); in a packed layout the batch is 1
    and the positions are those of all rows.
    """

    @property
    @abstractmethod
    def mask(self) -> Tensor | None:
        """True where a query may attend; None if everywhere; broadcasts to the weights.

        A mask of floating-point numbers is added to the attention scores.
        """

    @abstractmethod
    def fillers(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Compute equations 2 and 3: the filler of each query, (batch, head, query, d_head)."""


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return a mask, True where a query may attend; queries are the last positions of the keys."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


@dataclass(frozen=True)
class PaddedPattern(Pattern):
    """Attention between padded rows: a mask excludes padding and, if causal, later positions."""

    mask: Tensor | None = None

    def fillers(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Compute equations 2 and 3 with torch's fused attention."""
        return F.scaled_dot_product_attention(query, key, value, self.mask, dropout)


@dataclass(frozen=True)
class Padded:
    """Rows side by side in a tensor (row, position, …)."""

    filled: Tensor  # (row, position): True where a row has a token

    @classmethod
    def of(cls, ids: Tensor, pad: int) -> Self:
        """Return the layout of padded ids (row, position)."""
        return cls(ids != pad)

    @classmethod
    def lay_out(cls, rows: Ragged, pad: int) -> tuple[Tensor, Self]:
        """Return the ids of rows side by side, and their layout."""
        ids = torch.from_numpy(rows.padded(pad))
        return ids, cls.of(ids, pad)

    @classmethod
    def shift(cls, rows: Ragged, pad: int) -> tuple[Tensor, Tensor, Self]:
        """Return the inputs of the decoder, the token to predict after each, and their layout."""
        ids = torch.from_numpy(rows.padded(pad))
        return ids[:, :-1], ids[:, 1:], cls.of(ids[:, 1:], pad)

    @property
    def positions(self) -> slice:
        """The positions of all rows, which are consecutive."""
        return slice(0, self.longest)

    @property
    def longest(self) -> int:
        """The number of positions of the longest row."""
        return self.filled.shape[1]

    @property
    def lengths(self) -> Ids:
        """The number of tokens of each row."""
        lengths: Ids = self.filled.sum(dim=1).cpu().numpy()
        return lengths

    def __len__(self) -> int:
        return self.filled.shape[0]

    def within(self, *, causal: bool = False) -> PaddedPattern:
        """Return the pattern in which each row attends to itself.

        Padding is at the end of a row, so a causal mask excludes it too.
        """
        if not causal:
            return PaddedPattern(self.filled[:, None, None, :])
        return PaddedPattern(causal_mask(self.longest, self.longest, self.filled.device))

    def across(self, keys: "Layout") -> PaddedPattern:
        """Return the pattern in which each row attends to the same row of another padded layout."""
        if not isinstance(keys, Padded):
            raise TypeError("padded rows attend to padded rows only")
        return PaddedPattern(keys.filled[:, None, None, :])

    def tokens(self, state: Tensor) -> Tensor:
        """Return the entries of (row, position, …) that are tokens, row by row: (token, …)."""
        return state[self.filled]

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum of (row, position) over the tokens of each row: (row,)."""
        return values.masked_fill(~self.filled, 0).sum(dim=1)

    def pad_heads(self, states: Tensor) -> Tensor:
        """Return rows of states (batch, head, position, d_head), contiguous and side by side.

        Entries beyond the end of a row must be masked.
        """
        return states.contiguous()

    def to(self, device: torch.device | str) -> Self:
        """Return the layout for tensors on another device."""
        return type(self)(self.filled.to(device))


def has_flash_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has flash attention for packed rows on a device, which needs half precision."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and _has_varlen_attention()
    )


@cache
def _has_varlen_attention() -> bool:
    """Whether torch has `varlen_attn` with windows; older versions have none, or lack windows."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in signature(varlen_attn).parameters


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows concatenated in a tensor (1, position, …), in their order."""

    lengths: Ids
    device: torch.device = CPU

    @classmethod
    def lay_out(cls, rows: Ragged, pad: int) -> tuple[Tensor, Self]:
        """Return the concatenated ids of rows, and their layout."""
        return torch.from_numpy(rows.ids[None]), cls(rows.lengths)

    @classmethod
    def shift(cls, rows: Ragged, pad: int) -> tuple[Tensor, Tensor, Self]:
        """Return the rows without their last ids, without their first ids, and their layout."""
        inputs = np.delete(rows.ids, rows.offsets[1:] - 1)
        outputs = np.delete(rows.ids, rows.offsets[:-1])
        layout = cls(rows.lengths - 1)
        return torch.from_numpy(inputs[None]), torch.from_numpy(outputs[None]), layout

    @cached_property
    def offsets(self) -> Ids:
        """The position at which each row begins, and at which the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def positions(self) -> Tensor:
        """The position of each token within its row: (1, position)."""
        within = np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.lengths)
        return torch.from_numpy(within[None]).to(self.device)

    @cached_property
    def filled(self) -> Tensor:
        """True where a row would have a token if rows were padded: (row, position)."""
        return _filled(self.lengths).to(self.device)

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def rows(self) -> Tensor:
        """The row of each position: (position,)."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.lengths)).to(self.device)

    @cached_property
    def ends(self) -> Tensor:
        """`offsets` for flash attention: 32 bits, on the device."""
        return torch.from_numpy(self.offsets.astype(np.int32)).to(self.device)

    def __len__(self) -> int:
        return len(self.lengths)

    def within(self, *, causal: bool = False) -> "PackedPattern":
        """Return the pattern in which each row attends to itself."""
        return PackedPattern(self, self, causal)

    def across(self, keys: "Layout") -> "PackedPattern":
        """Return the pattern in which each row attends to the same row of another packed layout."""
        if not isinstance(keys, Packed):
            raise TypeError("packed rows attend to packed rows only")
        return PackedPattern(self, keys)

    def tokens(self, state: Tensor) -> Tensor:
        """Return all entries, because there is no padding."""
        return state[0]

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum over the tokens of each row."""
        return values.new_zeros(len(self)).index_add(0, self.rows, values[0])

    def places(self, rows: Ids | slice = slice(None)) -> Tensor:
        """Return the positions of rows side by side, (row, position); the last one is repeated."""
        lengths = self.lengths[rows, None]
        within = np.minimum(np.arange(lengths.max(initial=0)), lengths - 1)
        return torch.from_numpy(self.offsets[:-1][rows, None] + within).to(self.device)

    def pad_heads(self, states: Tensor) -> Tensor:
        """Return rows side by side, padded with copies of their last vectors."""
        return states[0][:, self.places()].transpose(0, 1).contiguous()

    def to(self, device: torch.device | str) -> Self:
        """Return the layout for tensors on another device."""
        return type(self)(self.lengths, torch.device(device))


Layout: TypeAlias = Union[Padded, Packed]  # noqa: UP007, which `type[Layout]` needs


@dataclass(frozen=True, eq=False)
class PackedPattern(Pattern):
    """Attention between packed rows.

    A C kernel on a CPU, or flash attention on a GPU, computes all rows in one call. Without the
    kernel, rows of similar lengths are padded and computed together.
    """

    queries: Packed
    keys: Packed
    causal: bool = False

    @cached_property
    def mask(self) -> Tensor:
        """True where query and key are in the same row and, if causal, the key is not later.

        The mask has the size of all queries times all keys. It is for methods that override
        `Attention.attend`; `fillers` does not use it.
        """
        same_row = self.queries.rows[:, None] == self.keys.rows
        if self.causal:
            same_row &= self.queries.positions[0, :, None] >= self.keys.positions
        return same_row

    def fillers(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Compute equations 2 and 3 within each row."""
        if query.device.type != "cpu":
            return self._flash(query, key, value)
        if can_attend(query, key, value, dropout):
            ends = torch.from_numpy(self.queries.offsets), torch.from_numpy(self.keys.offsets)
            return packed_attention(query, key, value, ends, self.causal)
        return self._by_length(query, key, value, dropout)

    def _by_length(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Compute equations 2 and 3 for some rows of similar lengths at a time."""
        order = np.argsort(self.keys.lengths, kind="stable")
        fillers, positions = [], []
        for rows in np.split(order, range(ROWS_AT_ONCE, len(order), ROWS_AT_ONCE)):
            of_queries, of_keys = self.queries.places(rows), self.keys.places(rows)
            q, k, v = (
                states[0][:, places].transpose(0, 1)  # (row, head, position, d_head)
                for states, places in ((query, of_queries), (key, of_keys), (value, of_keys))
            )
            if self.causal:
                mask = causal_mask(of_queries.shape[1], of_keys.shape[1], query.device)
            else:
                mask = _filled(self.keys.lengths[rows])[:, None, None]
            filler = F.scaled_dot_product_attention(q, k, v, mask, dropout)
            filled = _filled(self.queries.lengths[rows])
            fillers.append(filler.transpose(1, 2)[filled])  # (position, head, d_head)
            positions.append(of_queries[filled])
        in_order = torch.cat(fillers)[torch.cat(positions).argsort()]
        return in_order.transpose(0, 1)[None]

    def _flash(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        filler = varlen_attn(
            query,
            key,
            value,
            self.queries.ends,
            self.keys.ends,
            self.queries.longest,
            self.keys.longest,
            window_size=(-1, 0) if self.causal else (-1, -1),
        )
        assert isinstance(filler, Tensor)  # noqa: S101, a tuple only if other outputs are requested
        return filler.transpose(0, 1)[None]


def _filled(lengths: Ids) -> Tensor:
    """Return which positions of padded rows have a token: (row, position)."""
    return torch.from_numpy(np.arange(lengths.max(initial=0)) < lengths[:, None])
