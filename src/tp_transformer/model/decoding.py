"""Greedy search: symbol by symbol, each the likeliest after those before it."""

from typing import Any, Protocol

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Vocabulary


class Decodable(Protocol):
    """What a search needs of a model: see `Model` for what each of these does."""

    vocabulary: Vocabulary

    def encode(self, source: Tensor) -> Any: ...  # noqa: D102

    def begin(self, memory: Any, max_length: int) -> Any: ...  # noqa: D102

    def step(self, previous: Tensor, state: Any) -> Tensor: ...  # noqa: D102


def greedy(model: Decodable, source: Tensor, max_length: int) -> Tensor:
    """The likeliest symbols after each source (batch, source), up to `max_length` of them.

    Rows are padded after their end symbol; a row without one was cut short.
    """
    vocabulary = model.vocabulary
    state = model.begin(model.encode(source), max_length)
    previous = source.new_full((len(source),), vocabulary.sos)
    running = torch.ones_like(previous, dtype=torch.bool)
    symbols = []
    for _ in range(max_length):
        best = model.step(previous, state).argmax(dim=-1)
        symbols.append(best.where(running, vocabulary.pad))
        running = running & (best != vocabulary.eos)
        if not running.any():
            break
        previous = best
    return torch.stack(symbols, dim=1) if symbols else source.new_empty(len(source), 0)
