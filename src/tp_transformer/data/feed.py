"""The batches of a store by step, and the questions held out for validation."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np

from tp_transformer.data.sampler import Rows, Sampler
from tp_transformer.data.store import Segment, Split
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import NonNegative, Size, check_fields

MOST_HELD_OUT = 0.05  # share of the rows of a segment, also of a small one
STEPS_AHEAD = 4

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """The training data.

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
    """The training batches of a store, by step.

    A feed has no state: `tokens(step)` always returns the same rows.

    The last rows of each segment are held out for validation and never trained on. (The rows of a
    segment are in random order.) Questions of the test splits are not used for validation, because
    the best checkpoint is selected by it, and selection by test questions would bias the test
    score. A question of a small module may occur more than once in the training split, so a
    held-out question may also occur among the rows that are trained on.
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

    def __repr__(self) -> str:
        return (
            f"Feed({self.split.name!r}, batches of {self.sampler.batch_size:,} of "
            f"{len(self.sampler):,} rows, {len(self.held_out_rows):,} held out)"
        )

    def tokens(self, step: int, rank: int = 0, n_ranks: int = 1) -> tuple[Ragged, Ragged]:
        """Return the sources and targets of the batch of a step, or of the part of a rank."""
        return self.split.tokens(self.sampler.rows(step, rank, n_ranks), self.vocabulary)

    @property
    def held_out_rows(self) -> Rows:
        """The rows that are never trained on."""
        return np.concatenate([np.zeros(0, np.int64), *(one.rows for one in self._held_out)])

    @property
    def example(self) -> str:
        """Return an example question: the first held-out one, or the first that is trained on."""
        rows = self.held_out_rows if len(self.held_out_rows) else self.sampler.rows(0)
        return self.split.rows(rows[:1])[0][0]

    def validation(self, rank: int = 0, n_ranks: int = 1) -> dict[str, tuple[Ragged, Ragged]]:
        """Return the held-out rows, or those of a rank, by module."""
        by_module: dict[str, list[int]] = {}
        for one in self._held_out:
            by_module.setdefault(one.module, []).extend(one.rows)
        return {
            name: self.split.tokens(rows[rank::n_ranks], self.vocabulary)
            for name, rows in by_module.items()
        }


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
    """Return the segments to train on and the held-out ranges, about `count` rows in total."""
    used = [
        place
        for place, one in enumerate(segments)
        if weights is None or weights.get(one.module, 0) > 0
    ]
    kept, held_out = list(segments), []
    for number, place in enumerate(used if count else ()):
        one = segments[place]
        share = count // len(used) + (number < count % len(used))
        # At least one row of each segment; otherwise a small store would have no validation.
        most = max(int(one.count * MOST_HELD_OUT), 1) if one.count > 1 else 0
        n_rows = min(share, most)
        if n_rows:
            kept[place] = replace(one, count=one.count - n_rows)
            start = one.start + one.count - n_rows
            held_out.append(replace(one, start=start, count=n_rows))
    return kept, held_out


class Ahead(Generic[T]):
    """Prepares the batches of the next steps in a thread, while the current step is computed.

    >>> with Ahead(feed.tokens, first=0) as ahead:
    ...     parts = ahead.next()
    """

    def __init__(self, make: Callable[[int], T], first: int, depth: int = STEPS_AHEAD) -> None:
        self.waited = 0.0  # seconds in total
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
        """Return what the next step needs; raise the exception that preparing it has raised."""
        while len(self._made) < self._depth:
            self._made.append(self._thread.submit(self._make, self._step))
            self._step += 1
        start = time.perf_counter()
        made = self._made.popleft().result()
        self.waited += time.perf_counter() - start
        return made
