"""The batches of a store, step by step, and the questions held out of them."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np

from tp_transformer.data.batch import Batch, cut
from tp_transformer.data.sampler import Rows, Sampler
from tp_transformer.data.store import Segment, Split
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import NonNegative, Size, check_fields

MOST_HELD_OUT = 0.05  # of a segment's rows, so that a small store keeps nearly all of them
STEPS_AHEAD = 4

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """What to train on.

    Attributes:
        batch_size: samples in a batch, over all ranks
        modules: names of modules, or patterns such as arithmetic__*
        weights: shares of the modules in every batch; absent means by their numbers of rows
    """

    batch_size: Size = 1024
    modules: tuple[str, ...] = ("*",)
    weights: dict[str, NonNegative] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.modules:
            raise SettingsError("modules must name at least one module or pattern")


class Feed:
    """What a model trains on: for each step the rows that the sampler names, as batches.

    It has no state: `parts(step)` is the same whenever it is asked for. As an iterable it gives the
    batch of each step from the first on, without end.

    The last rows of every segment are held out: never trained on, always the same, they are what a
    run is validated with. (The rows of a segment are in random order.) The test splits must not
    serve for that: the best checkpoint is chosen by its validation, and a model that was chosen by
    the test questions has seen them. A question of a small module may occur more than once in the
    training split, and so also among the rows that are not held out.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        seed: int = 0,
        modules: str | Iterable[str] = "*",
        weights: Mapping[str, float] | None = None,
        vocabulary: Vocabulary | None = None,
        held_out: int = 0,
    ) -> None:
        segments = _select(split, (modules,) if isinstance(modules, str) else modules)
        kept, self._held_out = _hold_out(segments, held_out, weights)
        self.sampler = Sampler(kept, batch_size=batch_size, seed=seed, weights=weights)
        self.vocabulary = vocabulary or split.task.vocabulary
        self.split = split

    def __iter__(self) -> Iterator[Batch]:
        for step in itertools.count():
            yield Batch.from_ragged(*self.tokens(step), self.vocabulary.pad)

    def __repr__(self) -> str:
        return (
            f"Feed({self.split.name!r}, batches of {self.sampler.batch_size:,} of "
            f"{len(self.sampler):,} rows, {len(self.held_out_rows):,} held out)"
        )

    def tokens(self, step: int, rank: int = 0, n_ranks: int = 1) -> tuple[Ragged, Ragged]:
        """The sources and targets of a step's batch, or of a rank's share of it."""
        return self.split.tokens(self.sampler.rows(step, rank, n_ranks), self.vocabulary)

    def parts(self, step: int, rank: int = 0, n_ranks: int = 1) -> list[Batch]:
        """The same, cut into parts with little padding."""
        return cut(*self.tokens(step, rank, n_ranks), self.vocabulary.pad)

    @property
    def held_out_rows(self) -> Rows:
        """The rows that are never trained on."""
        rows = [np.arange(one.start, one.start + one.count) for one in self._held_out]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    @property
    def example(self) -> str:
        """A question of the data: the first that is held out, or the first that is trained on."""
        rows = self.held_out_rows if len(self.held_out_rows) else self.sampler.rows(0)
        return self.split.rows(rows[:1])[0][0]

    def validation(self, rank: int = 0, n_ranks: int = 1) -> dict[str, tuple[Ragged, Ragged]]:
        """The rows held out, or a rank's share of them, module by module."""
        by_module: dict[str, list[Rows]] = {}
        for one in self._held_out:
            by_module.setdefault(one.module, []).append(np.arange(one.start, one.start + one.count))
        shares = {name: np.concatenate(rows)[rank::n_ranks] for name, rows in by_module.items()}
        return {name: self.split.tokens(rows, self.vocabulary) for name, rows in shares.items()}


def _select(split: Split, modules: Iterable[str]) -> tuple[Segment, ...]:
    """Return the segments of the modules; a name or pattern without any rows is an error."""
    patterns = tuple(modules)
    for pattern in patterns:
        if not any(segment.count for segment in split.select(pattern)):
            raise SettingsError(
                f"{split.path.parent} has no {pattern} in its {split.name} split; it has "
                f"{', '.join(split.modules) or 'no rows'}"
            )
    return split.select(patterns)


def _hold_out(
    segments: Sequence[Segment], count: int, weights: Mapping[str, float] | None
) -> tuple[list[Segment], list[Segment]]:
    """What stays of the segments, and what is held out of each: about `count` rows in all."""
    used = [one for one in segments if weights is None or weights.get(one.module, 0) > 0]
    kept, held_out = list(segments), []
    for number, one in enumerate(used if count else ()):
        share = count // len(used) + (number < count % len(used))
        # Of a small segment one row at least, or a small store would have no validation at all.
        most = max(int(one.count * MOST_HELD_OUT), 1) if one.count > 1 else 0
        n_rows = min(share, most)
        if n_rows:
            kept[segments.index(one)] = replace(one, count=one.count - n_rows)
            start = one.start + one.count - n_rows
            held_out.append(replace(one, start=start, count=n_rows))
    return kept, held_out


class Ahead(Generic[T]):
    """Makes what the next steps need in a thread, while the present step is computed.

    >>> with Ahead(feed.parts, first=0) as ahead:
    ...     parts = ahead.next()
    """

    def __init__(self, make: Callable[[int], T], first: int, depth: int = STEPS_AHEAD) -> None:
        self.waited = 0.0  # seconds, in all
        self._make = make
        self._step = first
        self._depth = depth
        self._made: deque[Future[T]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def next(self) -> T:
        """What the next step needs; an error that was raised for it is raised here."""
        while len(self._made) < self._depth:
            self._made.append(self._thread.submit(self._make, self._step))
            self._step += 1
        start = time.perf_counter()
        made = self._made.popleft().result()
        self.waited += time.perf_counter() - start
        return made
