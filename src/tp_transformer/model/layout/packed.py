"""Packed rows: concatenated, without padding, (1, position)."""

from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from inspect import signature
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.model.layout.base import Layout, Pattern
from tp_transformer.model.layout.grouped import Groups, grouped_attention, vectors
from tp_transformer.ops.attention import can_attend, packed_attention

CPU = torch.device("cpu")


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
    _padded: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)

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
        inside = np.arange(self.longest) < self.lengths[:, None]
        return torch.from_numpy(inside).to(self.device)

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

    def across(self, keys: Layout) -> "PackedPattern":
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

    def pad_heads(self, states: Tensor) -> Tensor:
        """Return rows side by side, padded with copies of their last vectors."""
        rows, steps = vectors(states)
        n_heads = states.shape[1]
        if (n_heads, *steps) not in self._padded:
            last = np.minimum(np.arange(self.longest), self.lengths[:, None] - 1)
            position = self.offsets[:-1, None] + last  # (row, position)
            heads = np.arange(n_heads)[:, None] * steps[0]
            indices = torch.from_numpy((position[:, None] * steps[1] + heads).ravel())
            self._padded[n_heads, *steps] = indices.to(self.device)
        padded = rows.index_select(0, self._padded[n_heads, *steps])
        return padded.view(len(self), n_heads, self.longest, states.shape[-1])

    def to(self, device: torch.device | str) -> Self:
        """Return the layout for tensors on another device."""
        return type(self)(self.lengths, torch.device(device))


@dataclass(frozen=True, eq=False)
class PackedPattern(Pattern):
    """Attention between packed rows.

    On a CPU, a C kernel computes all rows in one call; without it, rows of equal length are
    computed in groups. Elsewhere flash attention for packed rows computes all of them in one call.
    """

    queries: Packed
    keys: Packed
    causal: bool = False
    _groups: dict[int, Groups] = field(default_factory=dict, repr=False)  # by number of heads

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
        n_heads = query.shape[1]
        if n_heads not in self._groups:
            self._groups[n_heads] = Groups.of(
                self.queries.lengths, self.keys.lengths, n_heads, self.causal
            )
        return grouped_attention(query, key, value, self._groups[n_heads], dropout)

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
