"""Answers to questions in text: encoding, search, decoding.

A network only processes token ids. A `Solver` combines it with its vocabulary: it encodes
questions, searches for answers in batches of similar lengths, and decodes them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Ragged
from tp_transformer.errors import SettingsError, TextError, TraceError
from tp_transformer.model.batch import group_by_length
from tp_transformer.model.decoding import Found, Searchable, beam_search, greedy
from tp_transformer.model.layout.base import Layout
from tp_transformer.model.layout.packed import Packed
from tp_transformer.model.trace import Traced, is_traced, joined_steps, parts
from tp_transformer.ops.engine import Engine, engine_for
from tp_transformer.ranges import AnswerLength, Beams, LengthPenalty, check

T = TypeVar("T")

# Questions decoded together. With twice as many, reading keys and values takes longer, and short
# questions have more padding (256 questions, tp-transformer-small: 1.39 s instead of 1.24 s).
ROWS_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer that a search found.

    Attributes:
        text: the answer
        log_probability: of its tokens, including the end token
        score: the log-probability after the length penalty, by which answers are ranked
        is_complete: whether the model ended the answer; otherwise it was truncated
    """

    text: str
    log_probability: float
    score: float
    is_complete: bool


class Solver:
    """Answers questions with a model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocabulary = model.vocabulary

    def solve(
        self, questions: Iterable[str], *, max_length: int | None = None, beam: int = 1
    ) -> list[str]:
        """Answer questions, with at most `max_length` tokens each, or the maximum of the task.

        A beam of 1 is greedy search; with a larger beam, the answer is the best of `answers`. If
        the model is traced, all questions are decoded in one padded batch, in the given order, so
        that traces record and edit these questions.
        """
        if beam != 1:
            found = self.answers(questions, max_length=max_length, beam=beam)
            return [answers[0].text for answers in found]
        return self._greedy(self.read(_as_texts(questions)), self._longest(max_length))

    def answers(
        self,
        questions: Iterable[str],
        *,
        max_length: int | None = None,
        beam: int = 5,
        n_best: int | None = None,
        length_penalty: float = 0.0,
    ) -> list[list[Answer]]:
        """Return the best answers to each question, best first: `beam` of them, or `n_best`.

        The score of an answer is its log-probability, divided by its length to the power of the
        penalty; see `beam_search`.
        """
        encoded = self.read(_as_texts(questions))
        longest = self._longest(max_length)
        _check_search(beam, n_best, length_penalty)
        if is_traced(self.model):
            raise TraceError("a beam search cannot be traced: its rows change; use solve(beam=1)")

        at_once = max(ROWS_AT_ONCE // beam, 1)

        def search(model: Searchable, source: Tensor, layout: Layout) -> list[list[Answer]]:
            found = beam_search(model, source, longest, beam, length_penalty, layout)
            return [self._decoded(answers)[:n_best] for answers in found]

        def search_by_kernels(engine: Engine, rows: Ragged) -> list[list[Answer]]:
            return search(engine, *Packed.lay_out(rows, self.vocabulary.pad))

        answers = self._by_kernels(encoded, search_by_kernels, at_once)
        if answers is None:
            answers = self._search(encoded, partial(search, self.model), at_once)
        return answers

    def read(self, questions: Sequence[str], noun: str = "question", first: int = 1) -> Ragged:
        """Encode questions; raise if one is empty, too long or has unknown characters.

        Errors name a question by `noun` and by its number, counted from `first`.
        """
        encoded = self.vocabulary.encode(questions, noun, first)
        longest = self.model.n_positions or np.inf
        lengths = encoded.lengths  # start and end included
        for row in np.flatnonzero(lengths == 2):
            raise TextError(f"{noun} {row + first} is empty")
        for row in np.flatnonzero(lengths > longest):
            raise TextError(
                f"{noun} {row + first} has {lengths[row] - 2} "
                f"{self.vocabulary.tokenisation}; "
                f"the model reads at most {longest - 2}"
            )
        return encoded

    def _greedy(self, questions: Ragged, longest: int) -> list[str]:
        """Return the answers by greedy search, by kernels alone if they support the model."""

        def search_by_kernels(engine: Engine, rows: Ragged) -> list[str]:
            return self.vocabulary.decode(engine.greedy(rows, longest).numpy())

        answers = self._by_kernels(questions, search_by_kernels, ROWS_AT_ONCE)
        if answers is not None:
            return answers
        with joined_steps(self.model) as traced:

            def search(source: Tensor, layout: Layout) -> list[str]:
                tokens = greedy(self.model, source, longest, layout, rows_may_leave=not traced)
                return self.vocabulary.decode(tokens.cpu().numpy())

            return self._search(questions, search, None if traced else ROWS_AT_ONCE)

    def _by_kernels(
        self, questions: Ragged, search: Callable[[Engine, Ragged], list[T]], at_once: int
    ) -> list[T] | None:
        """Search for answers by C kernels; None if they do not support the model.

        Several groups of questions share packed weights, which are freed at the end.
        """
        # The check for training mode in `evaluating` takes longer.
        evaluation = evaluating(self.model) if self.model.training else nullcontext()
        with evaluation, torch.inference_mode():
            engine = engine_for(self.model)
            if engine is None:
                return None
            if len(questions.lengths) > at_once:
                engine = engine.with_panels()
            return _in_groups(questions, partial(search, engine), at_once)

    def _search(
        self,
        questions: Ragged,
        search: Callable[[Tensor, Layout], list[T]],
        at_once: int | None,
    ) -> list[T]:
        """Search for answers in batches of questions of similar lengths.

        If `at_once` is None, all questions form one batch in the given order.
        """
        device = next(self.model.parameters()).device

        def search_rows(rows: Ragged) -> list[T]:
            kind = self.model.layout_for(device, n_rows=len(rows.lengths))
            source, layout = kind.lay_out(rows, self.vocabulary.pad)
            return search(source.to(device), layout.to(device))

        # Hooks and traces may use tensors with gradients later, which inference mode would prevent.
        no_gradients = torch.no_grad if is_observed(self.model) else torch.inference_mode
        with evaluating(self.model), no_gradients():
            return _in_groups(questions, search_rows, at_once)

    def _decoded(self, found: list[Found]) -> list[Answer]:
        """Decode answers to texts, without duplicates.

        Texts can be equal although their tokens differ, because special tokens are shown by name.
        """
        answers: dict[str, Answer] = {}
        for candidate in found:
            (text,) = self.vocabulary.decode(np.array([candidate.tokens], dtype=np.int64))
            answer = Answer(
                text=text,
                log_probability=candidate.log_probability,
                score=candidate.score,
                is_complete=candidate.is_complete,
            )
            answers.setdefault(text, answer)
        return list(answers.values())

    def _longest(self, max_length: int | None) -> int:
        """Return the maximum number of tokens of an answer: as given, or that of the task."""
        longest: int = self.model.max_answer if max_length is None else max_length
        check("max_length", longest, AnswerLength)
        if longest > (self.model.n_positions or np.inf):
            raise SettingsError(f"the model cannot write answers of {longest} tokens")
        return longest


def _check_search(beam: int, n_best: int | None, length_penalty: float) -> None:
    """Raise if the options of a beam search are out of range."""
    check("beam", beam, Beams)
    check("length_penalty", length_penalty, LengthPenalty)
    if n_best is not None and not 1 <= n_best <= beam:
        raise SettingsError(f"{beam} beams find 1 to {beam} answers to a question, not {n_best}")


def is_observed(module: nn.Module) -> bool:
    """Whether a hook or a trace sees the tensors of a call."""
    return any(
        # Torch has no public API for hooks.
        part._forward_hooks
        or part._forward_pre_hooks
        or (isinstance(part, Traced) and part._traces)
        for part in parts(module)
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode in the context; restore the mode of each submodule at the end."""
    in_training = [part for part in parts(module) if part.training]
    if in_training:  # setting the mode of all modules takes longer than this check
        module.eval()
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


def _in_groups(
    questions: Ragged, search: Callable[[Ragged], list[T]], at_once: int | None
) -> list[T]:
    """Return what a search finds in groups of questions of similar lengths, in their order.

    If `at_once` is None, all questions are searched together, in the given order.
    """
    n_questions = len(questions.lengths)
    if n_questions and (n_questions == 1 or at_once is None):
        return search(questions)
    found: dict[int, T] = {}
    for rows in group_by_length(questions.lengths, limit=at_once or n_questions):
        found.update(zip(rows.tolist(), search(questions.take(rows)), strict=True))
    return [found[row] for row in range(n_questions)]


def _as_texts(questions: Iterable[str]) -> list[str]:
    if isinstance(questions, str):
        raise TextError("solve takes a list of questions, not a single text")
    texts = list(questions)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TextError(f"question {number} is not a text but {type(text).__name__}")
    return texts
