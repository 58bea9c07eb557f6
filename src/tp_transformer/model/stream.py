"""`tpt solve`: answers to questions from arguments, a file or standard input.

Available questions are answered in batches, without waiting for further ones. A question that the
model cannot read does not affect the others.
"""

import codecs
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from tp_transformer.errors import TextError
from tp_transformer.model.family import AnyModel
from tp_transformer.model.solver import Answer, Solver

# Batches grow, so that the first answers of a long list come soon.
FIRST_TOGETHER, MOST_TOGETHER = 16, 1024
READ_AT_ONCE = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class SolvedQuestion:
    """A question with its answers, best first, or with an error."""

    question: str
    answers: tuple[Answer, ...] = ()
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
            return self.answers[0].text if self.answers else ""
        return "".join(f"{answer.score:.4f}\t{answer.text}\n" for answer in self.answers)


def solve_each(
    model: AnyModel,
    questions: Iterable[list[str]],
    *,
    noun: str,
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = 0.0,
    max_length: int | None = None,
) -> Iterator[SolvedQuestion]:
    """Answer questions in order; each list has the questions available at that time.

    Errors name a question by `noun` and its number.
    """
    solver = Solver(model)
    number = 1
    for some in _in_portions(questions):
        errors = [_error(solver, text, noun, number + place) for place, text in enumerate(some)]
        readable = [text for text, error in zip(some, errors, strict=True) if error is None]
        found = iter(
            solver.answers(
                readable,
                max_length=max_length,
                beam=beam,
                n_best=n_best,
                length_penalty=length_penalty,
            )
        )
        for text, error in zip(some, errors, strict=True):
            answers = tuple(next(found)) if error is None else ()
            yield SolvedQuestion(question=text, answers=answers, error=error)
        number += len(some)


def questions_from(given: Sequence[str], file: Path | None) -> Iterator[list[str]]:
    """Yield the given questions, or those in the file, or those on standard input."""
    if given:
        yield list(given)
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
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            whole[0], mark = whole[0].removeprefix(mark), b""
            yield [_text(line) for line in whole]
    if rest := rest.removeprefix(mark):
        yield [_text(rest)]


def _text(line: bytes) -> str:
    # A byte that is not UTF-8 becomes a character that no vocabulary has, which is an error.
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")


def _in_portions(questions: Iterable[list[str]]) -> Iterator[list[str]]:
    """Divide long lists into batches of increasing size."""
    size = FIRST_TOGETHER
    for there in questions:
        start = 0
        while start < len(there):
            yield there[start : start + size]
            start += size
            size = min(2 * size, MOST_TOGETHER)


def _error(solver: Solver, question: str, noun: str, number: int) -> str | None:
    """Return the error of a question that the model cannot read, otherwise None."""
    try:
        solver.read([question], noun, number)
    except TextError as error:
        return str(error)
    return None
