"""A rank's share of a batch, divided into passes of bounded size whose gradients add up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from tp_transformer.data.batch import Batch


@dataclass(frozen=True)
class Share:
    """A rank's share of a batch, divided into passes, and how much it is."""

    passes: list[list[Batch]]
    n_rows: int
    n_tokens: int  # symbols to predict
    n_symbols: int
    n_positions: int

    @classmethod
    def of(cls, parts: Sequence[Batch], symbols_per_pass: int) -> Self:
        """Divide the parts of a batch into passes, and count."""
        return cls(
            passes=list(divide(parts, symbols_per_pass)),
            n_rows=sum(map(len, parts)),
            n_tokens=sum(int(part.target_mask.sum()) for part in parts),
            n_symbols=sum(int(_symbols(part).sum()) for part in parts),
            n_positions=sum(part.source.numel() + part.target_input.numel() for part in parts),
        )


def divide(parts: Sequence[Batch], limit: int) -> Iterator[list[Batch]]:
    """Divide the rows of a batch's parts into passes of at most `limit` symbols.

    A row that has more than that by itself is a pass of its own.
    """
    held: list[Batch] = []
    n_symbols = 0
    for part in parts:
        start = 0
        for row, size in enumerate(_symbols(part).tolist()):
            if n_symbols and n_symbols + size > limit:
                yield [*held, *_rows(part, start, row)]
                held, n_symbols, start = [], 0, row
            n_symbols += size
        held += _rows(part, start, len(part))
    if held:
        yield held


def _symbols(part: Batch) -> Tensor:
    """How many symbols of each row the encoder and the decoder read."""
    return (part.source != part.pad).sum(dim=1) + part.target_mask.sum(dim=1)


def _rows(part: Batch, start: int, end: int) -> list[Batch]:
    if start == end:
        return []
    return [Batch(source=part.source[start:end], target=part.target[start:end], pad=part.pad)]
