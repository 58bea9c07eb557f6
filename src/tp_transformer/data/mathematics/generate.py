"""Questions by address: one, many, or more than fit in memory, with the same result.

A question is a pure function of its module, split, seed and index (and of the attempt, if a test
question is redrawn because it occurs in training). Generation can therefore be interrupted
anywhere, divided among any number of workers, and resumed after it was killed.

    for example in generate("arithmetic__mixed", split="interpolate", count=10, seed=0): ...
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from tp_transformer.data.mathematics.deepmind import Address, generator
from tp_transformer.data.mathematics.fast import replacements
from tp_transformer.data.mathematics.modules import EXTRAPOLATE, SPLITS, STORE_KEYS, modules_of
from tp_transformer.data.mathematics.task import match_modules
from tp_transformer.errors import SettingsError
from tp_transformer.runtime.processes import OpenPool, in_order, workers
from tp_transformer.settings import nearest

# About an eighth of a second of work on one core (0.6 ms per question on average), so that the
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
        return STORE_KEYS[self.split][1]


@dataclass(frozen=True)
class Chunk:
    """Consecutive questions of one file of the dataset."""

    module: str
    split: str
    seed: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The split, the module and the difficulty of the questions in a store."""
        split, difficulty = STORE_KEYS[self.split]
        return split, self.module, difficulty

    def cut(self, size: int = CHUNK) -> "Iterator[Chunk]":
        """Yield the same questions in chunks of a size."""
        for start in range(self.start, self.stop, size):
            yield replace(self, start=start, stop=min(start + size, self.stop))


def question_at(
    module: str, split: str, *, seed: int = 0, index: int = 0, attempt: int = 0, fast: bool = True
) -> GeneratedExample:
    """Return the question at an address; `attempt` gives further questions for the same place.

    Without `fast`, only DeepMind's code is used: the same text in about seven times the time.
    """
    if module not in (names := modules_of(split)):
        raise SettingsError(f"split {split} has no module {module!r}{nearest(module, names)}")
    address = Address(module=module, split=split, seed=seed, index=index, attempt=attempt)
    (example,) = draw([address], fast)
    return example


def generate(
    modules: str | Iterable[str],
    *,
    split: str,
    count: int,
    seed: int = 0,
    start: int = 0,
    n_workers: int | str | None = 0,
) -> Iterator[GeneratedExample]:
    """Yield `count` examples of each of the modules that match the patterns, module by module.

    They are generated on demand in this process or, with `n_workers` other than 0 (see
    `parallel.workers`), slightly ahead in other processes. `start` is the first index of each
    module.
    """
    if count < 0 or start < 0:
        raise SettingsError("count and start must not be negative")
    chunks = (
        chunk
        for _, module in match_files(modules, [split])
        for chunk in Chunk(module, split, seed, start, start + count).cut(CHUNK if n_workers else 1)
    )
    if n_workers == 0:
        return chain.from_iterable(map(generate_chunk, chunks))
    return chain.from_iterable(generate_chunks(chunks, workers(n_workers)))


def match_files(modules: str | Iterable[str], splits: Iterable[str]) -> list[tuple[str, str]]:
    """Return the files of the dataset, as split and module, whose module matches a pattern."""
    chosen = list(splits)
    files = [(split, module) for split in chosen for module in match_modules(modules, split)]
    if not files:
        raise SettingsError(
            f"no module of {', '.join(chosen) or 'no split'} matches {modules!r}: "
            f"only {len(modules_of(EXTRAPOLATE))} modules are extrapolated; the splits are "
            f"{', '.join(SPLITS)}"
        )
    return files


def generate_chunk(chunk: Chunk) -> list[GeneratedExample]:
    """Return the questions of a chunk; this runs in a worker."""
    first = Address(module=chunk.module, split=chunk.split, seed=chunk.seed)
    return draw(replace(first, index=index) for index in range(chunk.start, chunk.stop))


def generate_chunks(
    chunks: Iterable[Chunk], open_pool: OpenPool
) -> Iterator[list[GeneratedExample]]:
    """Yield the questions of each chunk, in the order of the chunks, generated by workers."""
    return in_order(generate_chunk, chunks, open_pool)


def draw(addresses: Iterable[Address], fast: bool = True) -> list[GeneratedExample]:
    """Return the questions at some addresses."""
    with generator().session():
        replacements().use(fast)
        return [GeneratedExample(a.module, a.split, *generator().question(a)) for a in addresses]
