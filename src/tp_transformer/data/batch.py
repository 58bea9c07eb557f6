"""Batch: padding, masks and the target's shift, so that no other file counts positions.

Of the positions of a random batch over all modules only 42% of the source's and 22% of the target's
hold a symbol. Two ways to spare a model the rest: `Packed` lays all rows end to end, for models
that can tell them apart; `cut` divides a batch into padded parts of rows of like lengths, in which
seven of eight positions hold a symbol. The losses of parts add up to that of the whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary

# Measured over 50 random batches of 1024 of the v1.0 sample: three classes of target length and the
# cost below make 26 parts with 1.14 times the positions of the symbols alone. Full search over both
# lengths comes to the same and takes ten times as long.
TARGET_CLASSES = (5, 10)
PART_COST = 300  # source positions that one more part must save


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Questions and answers as padded ids, each row `<sos> text <eos> <pad>…`."""

    source: Tensor  # (batch, source)
    target: Tensor  # (batch, target)
    pad: int

    @classmethod
    def from_text(
        cls, questions: Sequence[str], answers: Sequence[str], vocabulary: Vocabulary
    ) -> Self:
        """Encode and pad questions and their answers."""
        if len(questions) != len(answers):
            raise ValueError(f"{len(questions)} questions but {len(answers)} answers")
        return cls.from_ragged(
            vocabulary.encode(questions), vocabulary.encode(answers), vocabulary.pad
        )

    @classmethod
    def from_ragged(cls, source: Ragged, target: Ragged, pad: int) -> Self:
        """Pad rows of ids."""
        return cls(
            source=torch.from_numpy(source.padded(pad)),
            target=torch.from_numpy(target.padded(pad)),
            pad=pad,
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.source)

    @property
    def target_input(self) -> Tensor:
        """What the decoder reads: the target without its last position."""
        return self.target[:, :-1]

    @property
    def target_output(self) -> Tensor:
        """What the decoder must say: the target without its start symbol."""
        return self.target[:, 1:]

    @property
    def target_mask(self) -> Tensor:
        """True where `target_output` holds a symbol to predict."""
        return self.target_output != self.pad

    def count_rows(self, marked: Tensor) -> Tensor:
        """How many rows have a marked target position."""
        return marked.any(dim=1).sum()

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return type(self)(
            source=self.source.to(device), target=self.target.to(device), pad=self.pad
        )


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Questions and answers end to end, without padding: the shortest first, both on their own."""

    source: Tensor  # (1, position)
    target_input: Tensor  # (1, position)
    target_output: Tensor  # (1, position)
    source_lengths: Ids  # ascending
    target_lengths: Ids  # ascending, of what the decoder reads
    target_of_source: Ids  # which of the targets belongs to each source
    pad: int

    @classmethod
    def from_ragged(cls, source: Ragged, target: Ragged, pad: int) -> Self:
        """Lay rows of ids end to end."""
        by_source = np.argsort(source.lengths, kind="stable")
        by_target = np.argsort(target.lengths, kind="stable")
        source, target = source.take(by_source), target.take(by_target)
        rank = np.empty_like(by_target)
        rank[by_target] = np.arange(len(by_target))
        return cls(
            source=torch.from_numpy(source.ids[None]),
            target_input=torch.from_numpy(np.delete(target.ids, target.offsets[1:] - 1)[None]),
            target_output=torch.from_numpy(np.delete(target.ids, target.offsets[:-1])[None]),
            source_lengths=source.lengths,
            target_lengths=target.lengths - 1,
            target_of_source=rank[by_source],
            pad=pad,
        )

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Leave out the padding of a batch."""
        return cls.from_ragged(
            _ragged(batch.source, batch.pad), _ragged(batch.target, batch.pad), batch.pad
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.source_lengths)

    def to(self, device: torch.device | str) -> Self:
        """The same batch; packed batches are for CPUs."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"a packed batch stays on the CPU; cut one into parts for {device}")
        return self

    @property
    def source_position(self) -> Tensor:
        """The position of each source symbol within its row."""
        return _position(self.source_lengths)

    @property
    def target_position(self) -> Tensor:
        """The position of each target symbol within its row."""
        return _position(self.target_lengths)

    @property
    def target_mask(self) -> Tensor:
        """True where `target_output` holds a symbol to predict, as everywhere."""
        return torch.ones_like(self.target_output, dtype=torch.bool)

    def count_rows(self, marked: Tensor) -> Tensor:
        """How many rows have a marked target position."""
        row = torch.from_numpy(np.repeat(np.arange(len(self)), self.target_lengths))
        return torch.tensor(len(torch.unique(row[marked[0]])))


def _ragged(padded: Tensor, pad: int) -> Ragged:
    mask = padded != pad
    ends = mask.sum(dim=1).cumsum(dim=0)
    return Ragged(padded[mask].numpy(), np.concatenate([[0], ends.numpy()]))


def _position(lengths: Ids) -> Tensor:
    starts = np.cumsum(lengths) - lengths
    return torch.from_numpy(np.arange(lengths.sum()) - np.repeat(starts, lengths))


def cut(source: Ragged, target: Ragged, pad: int, part_cost: int = PART_COST) -> list[Batch]:
    """A batch in parts with little padding, each row in one of them.

    Rows whose targets are about as long come together, and of these the ones whose sources are; a
    part is cut in two for as long as that saves more than `part_cost` source positions.
    """
    target_class = np.searchsorted(TARGET_CLASSES, target.lengths - 1)  # without the start symbol
    order = np.lexsort((source.lengths, target_class))
    source, target = source.take(order), target.take(order)
    lengths = source.lengths
    edges = np.searchsorted(target_class[order], np.arange(len(TARGET_CLASSES) + 2)).tolist()
    places = [
        place
        for start, end in pairwise(edges)
        for place in (start, *_cuts(lengths, start, end, part_cost))
    ]
    return [
        Batch.from_ragged(source.between(start, end), target.between(start, end), pad)
        for start, end in pairwise([*places, len(lengths)])
        if start < end
    ]


def _cuts(lengths: Ids, start: int, end: int, part_cost: int) -> Iterator[int]:
    """Where to cut the sorted lengths between two places, in order."""
    if end - start < 2:
        return
    part = lengths[start:end]
    saved = np.arange(1, end - start) * (part[-1] - part[:-1])
    best = int(saved.argmax())
    if saved[best] > part_cost:
        middle = start + best + 1
        yield from _cuts(lengths, start, middle, part_cost)
        yield middle
        yield from _cuts(lengths, middle, end, part_cost)
