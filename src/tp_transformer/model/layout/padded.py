"""Padded rows: side by side, padded on the right, (row, position)."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.model.layout.base import Layout, Pattern


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
        """Return all ids but the last position, all but the first, and the layout of the latter."""
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

    def across(self, keys: Layout) -> PaddedPattern:
        """Return the pattern in which each row attends to the same row of another padded layout."""
        if not isinstance(keys, Padded):
            raise TypeError("padded rows attend to padded rows only")
        return PaddedPattern(keys.filled[:, None, None, :])

    def tokens(self, state: Tensor) -> Tensor:
        """Return the entries that belong to tokens, row by row."""
        return state[self.filled]

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum over the tokens of each row."""
        return values.masked_fill(~self.filled, 0).sum(dim=1)

    def pad_heads(self, states: Tensor) -> Tensor:
        """Return the states, which are padded already."""
        return states.contiguous()

    def to(self, device: torch.device | str) -> Self:
        """Return the layout for tensors on another device."""
        return type(self)(self.filled.to(device))
