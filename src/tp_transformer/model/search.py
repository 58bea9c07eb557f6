"""Greedy search and beam search, and what a decoder keeps between steps.

Greedy search, as in the paper, takes the likeliest token at each step. Beam search keeps the best
hypotheses of each question, and is greedy search with a beam of 1. Finished rows leave the batch.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tp_transformer.model.layout import Layout

# Finished rows are removed when they are this share of the batch, as removal copies the others.
# With answers as long as those of the dataset, removal halves the time; 1/8 to 1/2 are alike.
LEAVE_TOGETHER = 0.25
FIRST_ROOM = 8  # initial size of the buffers of a cache, in positions


class SearchState(Protocol):
    """The state of a model between steps."""

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows, in this order, and these questions, or all of them.

        Each question has the same number of rows; `rows` may contain duplicates.
        """


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


def memory_mask(filled: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to attention scores: -inf at padding, (batch, 1, 1, source)."""
    padding = ~filled[:, None, None, :]
    return torch.zeros_like(padding, dtype=dtype).masked_fill(padding, -math.inf)


@dataclass
class DecoderState:
    """The state of a Transformer's decoder between steps, by layer."""

    memory: list[tuple[Tensor, Tensor]]  # keys and values of the source, (batch, head, source, …)
    memory_mask: Tensor | None  # (batch, 1, 1, source): -inf at padding; None if there is none
    caches: Sequence[LayerCache]  # keys and values of the target so far

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows, and these questions or all of them."""
        for cache in self.caches:
            if not isinstance(cache, KeyValueCache):
                raise TypeError("rows of a cache that is kept elsewhere are selected there")
            cache.select(rows)
        if questions is not None:
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, questions)
            self.memory = [
                (key.index_select(0, questions), value.index_select(0, questions))
                for key, value in self.memory
            ]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """The tokens of a possible answer, with their probability.

    Attributes:
        tokens: token ids, including the end token if there is one
        log_probability: sum of the log-probabilities of the tokens
        score: log-probability after the length penalty, by which answers are ranked
        is_complete: whether there is an end token; otherwise the answer was truncated
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    is_complete: bool


def greedy(
    model: Any,
    source: Tensor,
    max_length: int,
    layout: Layout | None = None,
    *,
    rows_may_leave: bool = True,
) -> Tensor:
    """Return the answers by greedy search, of at most `max_length` tokens: (question, position).

    The model may be an engine. The source is padded if no layout is given. Rows are padded after
    their end token; a row without one was truncated.
    """
    eos, pad = model.vocabulary.eos, model.vocabulary.pad
    n_questions = len(source if layout is None else layout)
    state = model.begin(model.encode(source, layout), max_length)
    tokens = source.new_full((n_questions, max_length), pad)
    rows = torch.arange(n_questions, device=source.device)  # those still in the batch
    previous = source.new_full((n_questions,), model.vocabulary.sos)
    running = torch.ones_like(previous, dtype=torch.bool)
    for length in range(max_length):
        best = model.step(previous, state).argmax(dim=-1)
        tokens[rows, length] = best.where(running, pad)
        running = running & (best != eos)
        n_running = int(running.count_nonzero())
        if not n_running:
            return tokens[:, : length + 1]
        previous = best
        if rows_may_leave and len(rows) - n_running >= LEAVE_TOGETHER * len(rows):
            stay = running.nonzero()[:, 0]
            state.select(stay, stay)
            rows, previous, running = rows[stay], previous[stay], running[stay]
    return tokens


def beam_search(
    model: Any,
    source: Tensor,
    max_length: int,
    beam: int,
    length_penalty: float = 0.0,
    layout: Layout | None = None,
) -> list[list[Hypothesis]]:
    """Return the best answers to each source, best first, as many as the beam size.

    A hypothesis becomes an answer if it ends while it is among the `beam` best of its question. Its
    score is its log-probability divided by its length, including the end token, to the power of the
    penalty: 0 favours the likeliest answer, 1 the one with the likeliest tokens on average. A
    question is finished when no continuation of its hypotheses could score better than its answers.
    """
    vocabulary = model.vocabulary
    n_questions = len(source if layout is None else layout)
    pools = [_Pool(beam) for _ in range(n_questions)]
    beams = _Beams(
        pools=pools,
        written=source.new_full((n_questions, 1, 1), vocabulary.sos),
        log_probability=torch.zeros(n_questions, 1, device=source.device),
        eos=vocabulary.eos,
        max_length=max_length,
        length_penalty=length_penalty,
    )
    state = model.begin(model.encode(source, layout), max_length)
    for _ in range(max_length):
        origin = beams.grow(model.step(beams.last, state))
        questions = beams.leave()
        if not beams.pools:
            break
        state.select((origin if questions is None else origin[questions]).flatten(), questions)
    beams.cut()
    return [pool.answers for pool in pools]


@dataclass
class _Pool:
    """The best answers to one question so far, best first."""

    capacity: int
    answers: list[Hypothesis] = field(default_factory=list)
    is_settled: bool = False

    def add(self, answer: Hypothesis) -> None:
        """Add an answer if it is among the best."""
        if not self.is_settled:
            insort(self.answers, answer, key=lambda each: -each.score)
            del self.answers[self.capacity :]

    def settle(self, best_to_come: float) -> bool:
        """Whether no further answer can be better than the worst in the pool."""
        is_full = len(self.answers) == self.capacity
        self.is_settled = self.is_settled or (is_full and self.answers[-1].score >= best_to_come)
        return self.is_settled


@dataclass
class _Beams:
    """The hypotheses of the unfinished questions, best first."""

    pools: list[_Pool]  # one for each question
    written: Tensor  # (question, beam, position): the start token and the tokens so far
    log_probability: Tensor  # (question, beam)
    eos: int
    max_length: int
    length_penalty: float

    @property
    def last(self) -> Tensor:
        """The last token of each hypothesis: (question * beam)."""
        return self.written[:, :, -1].flatten()

    def grow(self, logits: Tensor) -> Tensor:
        """Extend hypotheses by the best next tokens; return the row that each one continues.

        Finished answers are added to the pools.
        """
        beam, width, n_vocab = self.pools[0].capacity, self.written.shape[1], logits.shape[-1]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        totals = self.log_probability[:, :, None] + wide.view(-1, width, n_vocab)
        # At most one continuation of each hypothesis has ended, so 2 * beam are enough.
        best, index = totals.flatten(1).topk(min(2 * beam, width * n_vocab))
        origin, token = index // n_vocab, index % n_vocab  # (question, continuation)
        ended = token == self.eos
        continued = torch.take_along_dim(self.written, origin[:, :, None], dim=1)
        continued = torch.cat([continued, token[:, :, None]], dim=2)
        self._collect(continued[:, :beam], best[:, :beam], ended[:, :beam], is_complete=True)
        going_on = ended.byte().argsort(dim=1, stable=True)[:, : min(beam, width * (n_vocab - 1))]
        self.written = torch.take_along_dim(continued, going_on[:, :, None], dim=1)
        self.log_probability = best.gather(1, going_on)
        first_row = torch.arange(len(origin), device=origin.device)[:, None] * width
        return first_row + origin.gather(1, going_on)

    def leave(self) -> Tensor | None:
        """Remove finished questions if there are enough; return the indices of the others."""
        # More tokens decrease the probability; the penalty can compensate at most by this factor. A
        # single hypothesis is followed to its end only.
        is_greedy = self.pools[0].capacity == 1
        most = 1.0 if is_greedy else self.max_length**self.length_penalty
        to_come = (self.log_probability[:, 0] / most).tolist()
        stay = [
            question
            for question, (pool, best) in enumerate(zip(self.pools, to_come, strict=True))
            if not pool.settle(best)
        ]
        if stay and len(self.pools) - len(stay) < LEAVE_TOGETHER * len(self.pools):
            return None
        self.pools = [self.pools[question] for question in stay]
        questions = torch.tensor(stay, dtype=torch.long, device=self.written.device)
        self.written, self.log_probability = (
            self.written[questions],
            self.log_probability[questions],
        )
        return questions

    def cut(self) -> None:
        """Add hypotheses of the maximum length as truncated answers."""
        everything = torch.ones_like(self.log_probability, dtype=torch.bool)
        self._collect(self.written, self.log_probability, everything, is_complete=False)

    def _collect(
        self, written: Tensor, log_probability: Tensor, chosen: Tensor, *, is_complete: bool
    ) -> None:
        """Add the chosen hypotheses to the pools of their questions."""
        penalty = max(written.shape[2] - 1, 1) ** self.length_penalty
        questions = chosen.nonzero()[:, 0].tolist()
        hypotheses = zip(written[chosen].tolist(), log_probability[chosen].tolist(), strict=True)
        for question, (tokens, total) in zip(questions, hypotheses, strict=True):
            self.pools[question].add(
                Hypothesis(
                    tokens=tuple(tokens[1:]),
                    log_probability=total,
                    score=total / penalty,
                    is_complete=is_complete,
                )
            )
