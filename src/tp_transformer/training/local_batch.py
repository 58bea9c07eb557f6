"""The local batch of a rank, divided into micro-batches whose gradients are accumulated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tp_transformer.data.vocabulary import Ragged
from tp_transformer.model.batch import Batch, cut, group_by_length
from tp_transformer.model.layout import Layout, Packed


@dataclass(frozen=True)
class LocalBatch:
    """The rows of a batch that one rank computes, divided into micro-batches, and their sizes."""

    micro_batches: list[list[Batch]]  # each is one forward and backward pass
    n_rows: int
    n_tokens: int  # tokens to predict
    n_symbols: int  # source and target tokens
    n_positions: int  # the same with padding

    @classmethod
    def of(cls, source: Ragged, target: Ragged, pad: int, limit: int, layout: type[Layout]) -> Self:
        """Divide rows into micro-batches of at most `limit` tokens, with little or no padding."""
        micro_batches = [
            [Batch.from_ragged(*rows, pad, Packed)] if layout is Packed else cut(*rows, pad)
            for rows in divide(source, target, limit)
        ]
        n_rows = len(source.lengths)
        n_tokens = int(target.lengths.sum()) - n_rows
        return cls(
            micro_batches=micro_batches,
            n_rows=n_rows,
            n_tokens=n_tokens,
            n_symbols=int(source.lengths.sum()) + n_tokens,
            n_positions=sum(
                batch.source.numel() + batch.target_input.numel()
                for batches in micro_batches
                for batch in batches
            ),
        )


def divide(source: Ragged, target: Ragged, limit: int) -> Iterator[tuple[Ragged, Ragged]]:
    """Yield micro-batches of at most `limit` tokens, by ascending length of their sources.

    A longer row is a micro-batch by itself.
    """
    cost = source.lengths + target.lengths - 1  # the decoder reads one token less
    for rows in group_by_length(source.lengths, limit=limit, cost=cost):
        yield source.take(rows), target.take(rows)
