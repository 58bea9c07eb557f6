"""Answers to questions in text: encoding, search, decoding.

A network only processes token ids. A `Solver` combines it with its vocabulary: it encodes
questions, searches for answers in batches of similar lengths, and decodes them. `solve_each` is
`tpt solve`: it answers available questions without waiting for further ones, and a question that
the model cannot read does not affect the others.
"""

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Ragged
from tp_transformer.errors import SettingsError, TextError, TraceError
from tp_transformer.model.batch import group_by_length
from tp_transformer.model.layout import Layout
from tp_transformer.model.search import Hypothesis, beam_search, greedy
from tp_transformer.model.trace import Traced, is_traced, joined_steps, submodules
from tp_transformer.ops.engine import Engine, engine_for
from tp_transformer.ranges import AnswerLength, Beams, LengthPenalty, check

T = TypeVar("T")

# Questions decoded together. With twice as many, reading keys and values takes longer, and short
# questions have more padding (256 questions, tp-transformer-small: 1.39 s instead of 1.24 s).
ROWS_AT_ONCE = 128
# Batches of `solve_each` grow, so that the first answers of a long list come soon.
FIRST_TOGETHER, MOST_TOGETHER = 16, 1024
READ_AT_ONCE = 1 << 16  # bytes


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
            answers = self.answers(questions, max_length=max_length, beam=beam)
            return [of_question[0].text for of_question in answers]
        return self.greedy(self.read(_as_texts(questions)), max_length)

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
        return self.best(encoded, max_length, beam, n_best, length_penalty)

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

    def greedy(self, questions: Ragged, max_length: int | None = None) -> list[str]:
        """Answer encoded questions by greedy search."""
        longest = self._longest(max_length)

        def search(model: Any, rows: Ragged) -> list[str]:
            if isinstance(model, Engine):
                tokens = model.greedy(rows, longest)
            else:
                source, layout = self._lay_out(rows)
                rows_may_leave = not is_traced(model)
                tokens = greedy(model, source, longest, layout, rows_may_leave=rows_may_leave)
            return self.vocabulary.decode(tokens.cpu().numpy())

        return self._search_groups(questions, search, ROWS_AT_ONCE)

    def best(
        self,
        questions: Ragged,
        max_length: int | None = None,
        beam: int = 5,
        n_best: int | None = None,
        length_penalty: float = 0.0,
    ) -> list[list[Answer]]:
        """Answer encoded questions by beam search, as `answers` does."""
        longest = self._longest(max_length)
        check("beam", beam, Beams)
        check("length_penalty", length_penalty, LengthPenalty)
        if n_best is not None and not 1 <= n_best <= beam:
            raise SettingsError(
                f"{beam} beams find 1 to {beam} answers to a question, not {n_best}"
            )
        if is_traced(self.model):
            raise TraceError("a beam search cannot be traced: its rows change; use solve(beam=1)")

        def search(model: Any, rows: Ragged) -> list[list[Answer]]:
            source, layout = self._lay_out(rows)
            pools = beam_search(model, source, longest, beam, length_penalty, layout)
            return [self._decoded(hypotheses)[:n_best] for hypotheses in pools]

        return self._search_groups(questions, search, max(ROWS_AT_ONCE // beam, 1))

    def _search_groups(
        self, questions: Ragged, search: Callable[[Any, Ragged], list[T]], at_once: int
    ) -> list[T]:
        """Search for answers in groups of similar lengths, with the engine if there is one.

        Several groups share packed weights of the engine, which are freed at the end. A traced
        model gets all questions together, in the given order.
        """
        # The check for training mode in `evaluating` takes longer.
        evaluation = evaluating(self.model) if self.model.training else nullcontext()
        with evaluation, torch.inference_mode():
            engine = engine_for(self.model)
            if engine is not None:
                if len(questions.lengths) > at_once:
                    engine = engine.with_panels()
                return _in_groups(questions, partial(search, engine), at_once)
        # Hooks and traces may use tensors with gradients later, which inference mode would prevent.
        no_gradients = torch.no_grad if is_observed(self.model) else torch.inference_mode
        with evaluating(self.model), no_gradients(), joined_steps(self.model) as traced:
            return _in_groups(questions, partial(search, self.model), None if traced else at_once)

    def _lay_out(self, rows: Ragged) -> tuple[Tensor, Layout]:
        device = next(self.model.parameters()).device
        kind = self.model.layout_for(device, n_rows=len(rows.lengths))
        source, layout = kind.lay_out(rows, self.vocabulary.pad)
        return source.to(device), layout.to(device)

    def _decoded(self, hypotheses: list[Hypothesis]) -> list[Answer]:
        """Decode answers to texts, without duplicates.

        Texts can be equal although their tokens differ, because special tokens are shown by name.
        """
        answers: dict[str, Answer] = {}
        for hypothesis in hypotheses:
            (text,) = self.vocabulary.decode(np.array([hypothesis.tokens], dtype=np.int64))
            answer = Answer(
                text=text,
                log_probability=hypothesis.log_probability,
                score=hypothesis.score,
                is_complete=hypothesis.is_complete,
            )
            answers.setdefault(text, answer)
        return list(answers.values())

    def _longest(self, max_length: int | None) -> int:
        """Return the maximum number of tokens of an answer; by default that of the task."""
        longest: int = self.model.max_answer if max_length is None else max_length
        check("max_length", longest, AnswerLength)
        if longest > (self.model.n_positions or np.inf):
            raise SettingsError(f"the model cannot write answers of {longest} tokens")
        return longest


def is_observed(module: nn.Module) -> bool:
    """Whether a hook or a trace sees the tensors of a call."""
    return any(
        # Torch has no public API for hooks.
        child._forward_hooks
        or child._forward_pre_hooks
        or (isinstance(child, Traced) and child._traces)
        for child in submodules(module)
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode in the context; restore the mode of each submodule at the end."""
    in_training = [child for child in submodules(module) if child.training]
    if in_training:  # setting the mode of all modules takes longer than this check
        module.eval()
    try:
        yield
    finally:
        for child in in_training:
            child.training = True


def _in_groups(
    questions: Ragged, search: Callable[[Ragged], list[T]], at_once: int | None
) -> list[T]:
    """Return what a search finds in groups of questions of similar lengths, in their order.

    If `at_once` is None, all questions are searched together, in the given order.
    """
    n_questions = len(questions.lengths)
    if n_questions and (n_questions == 1 or at_once is None):
        return search(questions)
    by_row: dict[int, T] = {}
    for rows in group_by_length(questions.lengths, limit=at_once or n_questions):
        by_row.update(zip(rows.tolist(), search(questions.take(rows)), strict=True))
    return [by_row[row] for row in range(n_questions)]


def _as_texts(questions: Iterable[str]) -> list[str]:
    if isinstance(questions, str):
        raise TextError("solve takes a list of questions, not a single text")
    texts = list(questions)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TextError(f"question {number} is not a text but {type(text).__name__}")
    return texts


@dataclass(frozen=True, kw_only=True)
class SolvedQuestion:
    """A question with the text of its answer, its scored answers, best first, or an error."""

    question: str
    text: str = ""
    answers: tuple[Answer, ...] = ()  # none if they have no scores
    error: str | None = None

    def as_json(self) -> str:
        """Return the question and its answers, or the error, as a line of JSON."""
        if self.error is not None:
            return json.dumps({"question": self.question, "error": self.error})
        answers = [asdict(answer) for answer in self.answers]
        return json.dumps({"question": self.question, "answers": answers})

    def as_text(self, *, several: bool) -> str:
        """Return the answer, or several with their scores, followed by an empty line.

        A question with an error gives an empty line or block, so that lines match the questions.
        """
        if not several:
            return self.text
        return "".join(f"{answer.score:.4f}\t{answer.text}\n" for answer in self.answers)


def solve_each(
    model: Any,
    questions: Iterable[list[str]],
    *,
    noun: str,
    is_scored: bool = True,
    beam: int = 1,
    max_length: int | None = None,
    **options: Any,
) -> Iterator[SolvedQuestion]:
    """Answer questions in order; each list has the questions available at that time.

    Errors name a question by `noun` and its number. Scored answers are those of `Solver.answers`,
    which has more options; greedy search, which computes no scores, is faster.
    """
    solver, first = Solver(model), 1
    for texts in _in_portions(questions):
        encoded, errors = _readable(solver, texts, noun, first)
        readable = [index for index, error in enumerate(errors) if error is None]
        solved = [
            SolvedQuestion(question=text, error=error)
            for text, error in zip(texts, errors, strict=True)
        ]
        if is_scored or beam > 1:
            best = solver.best(encoded, max_length, beam, **options)
            for index, answers in zip(readable, best, strict=True):
                text = answers[0].text
                solved[index] = replace(solved[index], text=text, answers=tuple(answers))
        else:
            for index, text in zip(readable, solver.greedy(encoded, max_length), strict=True):
                solved[index] = replace(solved[index], text=text)
        yield from solved
        first += len(texts)


def _readable(
    solver: Solver, texts: list[str], noun: str, first: int
) -> tuple[Ragged, list[str | None]]:
    """Encode the questions that the model can read; return the errors of the others, too."""
    errors: list[str | None] = [None] * len(texts)
    try:
        return solver.read(texts, noun, first), errors
    except TextError:
        for index, text in enumerate(texts):
            try:
                solver.read([text], noun, first + index)
            except TextError as error:
                errors[index] = str(error)
    readable = [text for text, error in zip(texts, errors, strict=True) if error is None]
    return solver.read(readable), errors


def _in_portions(questions: Iterable[list[str]]) -> Iterator[list[str]]:
    """Divide long lists into batches of increasing size."""
    size = FIRST_TOGETHER
    for texts in questions:
        start = 0
        while start < len(texts):
            yield texts[start : start + size]
            start += size
            size = min(2 * size, MOST_TOGETHER)


def questions_from(arguments: Sequence[str], file: Path | None) -> Iterator[list[str]]:
    """Yield the questions in the arguments, or those in the file, or those on standard input."""
    if arguments:
        yield list(arguments)
    elif file is not None:
        with file.open("rb") as stream:
            yield from lines(stream)
    else:
        if sys.stdin.isatty():
            print("tpt: one question per line; Ctrl-D ends", file=sys.stderr)
        yield from lines(sys.stdin.buffer)


def lines(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the available lines of a stream; wait only if there are none."""
    rest, mark = b"", codecs.BOM_UTF8  # some editors write it before the first line
    while data := stream.read1(READ_AT_ONCE):  # type: ignore[attr-defined]
        *complete, rest = (rest + data).split(b"\n")
        if complete:
            complete[0], mark = complete[0].removeprefix(mark), b""
            yield [_text(line) for line in complete]
    if rest := rest.removeprefix(mark):
        yield [_text(rest)]


def _text(line: bytes) -> str:
    # A byte that is not UTF-8 becomes a character that no vocabulary has, which is an error.
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
