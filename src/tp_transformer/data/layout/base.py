"""What the layouts have in common: `Layout` for rows of tokens, `Pattern` for attention."""

import math
from abc import ABC, abstractmethod
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from tp_transformer.data.vocabulary import Ids, Ragged


class Pattern(ABC):
    """Which queries may attend to which keys, and how attention is computed for them.

    Queries, keys and values are (batch, head, position, d_head); in a packed layout the batch is 1
    and the positions are those of all rows.
    """

    @property
    @abstractmethod
    def mask(self) -> Tensor | None:
        """True where a query may attend, or None if everywhere; broadcasts to the weights.

        A mask of numbers is added to the attention scores instead.
        """

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Equation 3: how much each query attends to each key; (batch, head, query, key)."""
        scores = query / math.sqrt(query.shape[-1]) @ key.transpose(-2, -1)
        mask = self.mask
        if mask is None:
            return scores.softmax(dim=-1)
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return (scores + mask).softmax(dim=-1)

    def fillers(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Equations 2 and 3: what each query retrieves; (batch, head, query, d_head)."""
        return F.dropout(self.weights(query, key), dropout) @ value


class Layout(Protocol):
    """Where the tokens of each row are in a tensor (batch, position, …)."""

    @classmethod
    def lay_out(cls, rows: Ragged, pad: int) -> tuple[Tensor, Self]:
        """The ids of rows as a tensor (batch, position), and their layout."""

    @classmethod
    def shift(cls, rows: Ragged, pad: int) -> tuple[Tensor, Tensor, Self]:
        """Decoder inputs, the tokens that should follow each, and the layout of both."""

    @property
    def filled(self) -> Tensor:
        """True where a row has a token when rows are side by side: (row, position)."""

    @property
    def positions(self) -> slice | Tensor:
        """The position of each token within its row, as an index into a table of positions."""

    @property
    def longest(self) -> int:
        """The number of positions that the longest row needs."""

    @property
    def lengths(self) -> Ids:
        """The number of tokens of each row."""

    def __len__(self) -> int:
        """The number of rows."""

    def within(self, *, causal: bool = False) -> Pattern:
        """Every row attends to itself; if causal, no position attends to a later one."""

    def across(self, keys: "Layout") -> Pattern:
        """Every row attends to the row of the same number in another layout of the same kind."""

    def tokens(self, state: Tensor) -> Tensor:
        """The entries of (batch, position, …) that belong to tokens, row after row: (token, …)."""

    def row_sums(self, values: Tensor) -> Tensor:
        """The sum of (batch, position) over the tokens of each row: (row,)."""

    def pad_heads(self, states: Tensor) -> Tensor:
        """Rows of (batch, head, position, d_head) side by side: (row, head, position, d_head).

        The result is contiguous. What it has beyond the end of a row is to be masked.
        """

    def to(self, device: torch.device | str) -> Self:
        """The same layout for tensors on another device."""
