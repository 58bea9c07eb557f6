"""Questions by address: one, many, or more than fit in memory, with the same result.

A question is a pure function of its module, split, seed and index (and of the attempt, if a test
question is redrawn because it occurs in training). Generation can therefore be interrupted
anywhere, divided among any number of workers, and resumed after it was killed.

    for example in generate("arithmetic__mixed", split="interpolate", count=10, seed=0): ...
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tp_transformer.data.mathematics.modules import EXTRAPOLATE, SPLITS, TRAIN_SPLITS, modules_of
from tp_transformer.data.mathematics.task import match_modules
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.parallel import OpenPool, in_order, workers
from tp_transformer.foundation.settings import nearest

if TYPE_CHECKING:
    from tp_transformer.data.mathematics.deepmind import Address

# About a quarter of a second of work on one core (1.3 ms per question on average), so that the
# transfer of results costs little and a lost worker loses little.
CHUNK = 200


@dataclass(frozen=True)
class GeneratedExample:
    """A question with its answer, and the file of the dataset that it belongs to."""

    module: str
    split: str
    question: str
    answer: str

    @property
    def difficulty(self) -> str | None:
        """`easy`, `medium` or `hard` in training; None in the test splits."""
        return self.split.removeprefix("train-") if self.split in TRAIN_SPLITS else None


@dataclass(frozen=True)
class Chunk:
    """Consecutive questions of one file: the unit of work."""

    module: str
    split: str
    seed: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class GeneratedQuestions:
    """The questions of a chunk, as columns."""

    chunk: Chunk
    questions: list[str]
    answers: list[str]

    def __len__(self) -> int:
        return len(self.questions)

    def __iter__(self) -> Iterator[GeneratedExample]:
        for question, answer in zip(self.questions, self.answers, strict=True):
            yield GeneratedExample(self.chunk.module, self.chunk.split, question, answer)


def question_at(
    module: str, split: str, *, seed: int = 0, index: int = 0, attempt: int = 0, fast: bool = True
) -> GeneratedExample:
    """Return the question at an address; `attempt` gives further questions for the same place.

    Without `fast`, only DeepMind's code is used: the same text in about three times the time.
    """
    from tp_transformer.data.mathematics.deepmind import Address

    if module not in (names := modules_of(split)):
        raise SettingsError(f"split {split} has no module {module!r}{nearest(module, names)}")
    address = Address(module=module, split=split, seed=seed, index=index, attempt=attempt)
    (pair,) = _draw([address], fast)
    return GeneratedExample(module, split, *pair)


def generate(
    modules: str | Iterable[str],
    *,
    split: str,
    count: int,
    seed: int = 0,
    start: int = 0,
    n_workers: int | str | None = 0,
    fast: bool = True,
) -> Iterator[GeneratedExample]:
    """Yield `count` examples of each of the modules that match the patterns, module by module.

    They are generated on demand in this process or, with `n_workers` other than 0 (see
    `parallel.workers`), slightly ahead in other processes. `start` is the first index of each
    module.
    """
    chunks = cut(modules, split, count=count, seed=seed, start=start)
    if n_workers == 0:
        return _here(chunks, fast)
    return _elsewhere(chunks, workers(n_workers), fast)


def cut(
    modules: str | Iterable[str],
    splits: str | Iterable[str],
    *,
    count: int,
    seed: int = 0,
    start: int = 0,
    size: int = CHUNK,
) -> Iterator[Chunk]:
    """Return the work for `count` questions of each matching module of the splits, in order."""
    if count < 0 or start < 0:
        raise SettingsError("count and start must not be negative")
    chosen = [splits] if isinstance(splits, str) else list(splits)
    files = [(split, module) for split in chosen for module in match_modules(modules, split)]
    if not files:
        raise SettingsError(
            f"no module of {', '.join(chosen) or 'no split'} matches {modules!r}: "
            f"only {len(modules_of(EXTRAPOLATE))} modules are extrapolated; the splits are "
            f"{', '.join(SPLITS)}"
        )
    stop = start + count
    return (
        Chunk(module, split, seed, begin, min(begin + size, stop))
        for split, module in files
        for begin in range(start, stop, size)
    )


def generate_chunk(chunk: Chunk, fast: bool = True) -> GeneratedQuestions:
    """Return the questions of a chunk; this runs in a worker."""
    pairs = _draw(_addresses(chunk), fast)
    return GeneratedQuestions(
        chunk, [question for question, _ in pairs], [answer for _, answer in pairs]
    )


def generate_chunks(
    chunks: Iterable[Chunk], open_pool: OpenPool, *, fast: bool = True
) -> Iterator[GeneratedQuestions]:
    """Yield the questions of each chunk, in the order of the chunks, generated by workers."""
    return in_order(partial(generate_chunk, fast=fast), chunks, open_pool)


def _here(chunks: Iterator[Chunk], fast: bool) -> Iterator[GeneratedExample]:
    for chunk in chunks:
        for address in _addresses(chunk):
            (pair,) = _draw([address], fast)
            yield GeneratedExample(chunk.module, chunk.split, *pair)


def _elsewhere(
    chunks: Iterator[Chunk], open_pool: OpenPool, fast: bool
) -> Iterator[GeneratedExample]:
    for questions in generate_chunks(chunks, open_pool, fast=fast):
        yield from questions


def _addresses(chunk: Chunk) -> "Iterator[Address]":
    from tp_transformer.data.mathematics.deepmind import Address

    for index in range(chunk.start, chunk.stop):
        yield Address(module=chunk.module, split=chunk.split, seed=chunk.seed, index=index)


def _draw(addresses: "Iterable[Address]", fast: bool) -> list[tuple[str, str]]:
    # Imported here, so that a worker sets its number of threads before numpy is imported.
    from tp_transformer.data.mathematics.deepmind import generator
    from tp_transformer.data.mathematics.fast import replacements

    with generator().session():
        replacements().use(fast)
        return [generator().question(address) for address in addresses]
