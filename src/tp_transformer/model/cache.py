"""The cache of keys and values in decoding."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

FIRST_ROOM = 8  # initial size of the buffers, in positions


class LayerCache(Protocol):
    """The keys and values of one layer, of the positions decoded so far."""

    @property
    def length(self) -> int:
        """The number of positions."""

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new positions; return those of all positions."""


@dataclass
class KeyValueCache:
    """The keys and values of the positions decoded so far, at most `capacity`."""

    capacity: int
    length: int = 0
    _buffers: tuple[Tensor, ...] = field(default=(), repr=False)  # (batch, head, room, d_head)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new positions; return those of all positions."""
        end = self.length + key.shape[-2]
        if end > self.capacity:
            raise ValueError(f"the cache has {self.capacity} positions, not {end}")
        if not self._buffers or end > self._buffers[0].shape[2]:
            self._make_room(key, end)
        for buffer, new in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self.length : end] = new
        self.length = end
        all_keys, all_values = (buffer[:, :, :end] for buffer in self._buffers)
        return all_keys, all_values

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        self._buffers = tuple(buffer.index_select(0, rows) for buffer in self._buffers)

    def _make_room(self, like: Tensor, end: int) -> None:
        """Double the buffers; they start small, because most answers are short."""
        room = min(self.capacity, max(FIRST_ROOM, 2 * end))
        batch, n_heads, _, d_head = like.shape
        larger = tuple(like.new_empty(batch, n_heads, room, d_head) for _ in range(2))
        for buffer, old in zip(larger, self._buffers, strict=False):
            buffer[:, :, : self.length] = old[:, :, : self.length]
        self._buffers = larger
