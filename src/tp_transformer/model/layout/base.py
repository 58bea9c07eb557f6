"""The base classes of layouts: `Layout` for rows of tokens, `Pattern` for attention."""

from abc import ABC, abstractmethod
from typing import Protocol, Self

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids, Ragged


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


class Layout(Protocol):
    """The places of the tokens of each row in a tensor (batch, position, …)."""

    @classmethod
    def lay_out(cls, rows: Ragged, pad: int) -> tuple[Tensor, Self]:
        """Return the ids of rows as a tensor (batch, position), and their layout."""

    @classmethod
    def shift(cls, rows: Ragged, pad: int) -> tuple[Tensor, Tensor, Self]:
        """Return the inputs of the decoder, the token to predict after each, and their layout."""

    @property
    def filled(self) -> Tensor:
        """True where a row has a token, for rows side by side: (row, position)."""

    @property
    def positions(self) -> slice | Tensor:
        """The position of each token within its row, as an index into a table of positions."""

    @property
    def longest(self) -> int:
        """The number of positions of the longest row."""

    @property
    def lengths(self) -> Ids:
        """The number of tokens of each row."""

    def __len__(self) -> int:
        """The number of rows."""

    def within(self, *, causal: bool = False) -> Pattern:
        """Return the pattern of attention within rows; causal: not to later positions."""

    def across(self, keys: "Layout") -> Pattern:
        """Return the pattern in which each row attends to the same row of another layout."""

    def tokens(self, state: Tensor) -> Tensor:
        """Return the entries of (batch, position, …) that are tokens, row by row: (token, …)."""

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum of (batch, position) over the tokens of each row: (row,)."""

    def pad_heads(self, states: Tensor) -> Tensor:
        """Return rows of (batch, head, position, d_head) as (row, head, position, d_head).

        The result is contiguous. Its entries beyond the end of a row must be masked.
        """

    def to(self, device: torch.device | str) -> Self:
        """Return the layout for tensors on another device."""
