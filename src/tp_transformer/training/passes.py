"""A rank's share of a batch, divided into passes of bounded size whose gradients add up."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tp_transformer.data.batch import Batch, cut, group_by_length
from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import Packed
from tp_transformer.data.vocabulary import Ragged


@dataclass(frozen=True)
class Share:
    """A rank's share of a batch, divided into passes, and how much it is."""

    passes: list[list[Batch]]
    n_rows: int
    n_tokens: int  # symbols to predict
    n_symbols: int
    n_positions: int

    @classmethod
    def of(cls, source: Ragged, target: Ragged, pad: int, limit: int, layout: type[Layout]) -> Self:
        """Divide rows into passes of at most `limit` symbols, without padding or with little."""
        passes = [
            [Batch.from_ragged(*rows, pad, Packed)] if layout is Packed else cut(*rows, pad)
            for rows in divide(source, target, limit)
        ]
        n_rows = len(source.lengths)
        n_tokens = int(target.lengths.sum()) - n_rows
        return cls(
            passes=passes,
            n_rows=n_rows,
            n_tokens=n_tokens,
            n_symbols=int(source.lengths.sum()) + n_tokens,
            n_positions=sum(
                batch.source.numel() + batch.target_input.numel()
                for batches in passes
                for batch in batches
            ),
        )


def divide(source: Ragged, target: Ragged, limit: int) -> Iterator[tuple[Ragged, Ragged]]:
    """Rows in passes of at most `limit` symbols, by ascending length of their sources.

    A row that has more than that by itself is a pass of its own.
    """
    cost = source.lengths + target.lengths - 1  # the decoder reads one token less
    for rows in group_by_length(source.lengths, limit=limit, cost=cost):
        yield source.take(rows), target.take(rows)
