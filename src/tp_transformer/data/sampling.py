"""The batches of a store by step, the questions held out for validation, and their order.

The rows of a batch are a pure function of the seed and the step: nothing is remembered between
steps. A run can therefore resume at any step with any number of ranks, and the sequence of samples
is always the same.

The order of rows is a pseudo-random permutation that is computed, not stored: `permute(i, n, key)`
is a bijection of 0 … n - 1 for each key, a Feistel network over the smallest rectangle with n
cells, with cycle walking (Black and Rogaway, 2002). It shuffles 112 million rows without memory or
preparation, and computes the row at any index directly.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from tp_transformer.data.store import Segment, Split
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import NonNegative, Size, check_fields
from tp_transformer.settings import nearest

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDS = 6  # of the Feistel network: 4 are pseudo-random; 6 leave a margin for small n
BLOCK = (
    2**12
)  # positions in which a mixture is exact: weights are rounded to multiples of 1 / BLOCK
MOST_HELD_OUT = 0.05  # share of the rows of a segment, also of a small one
STEPS_AHEAD = 4

T = TypeVar("T")


def permute(index: npt.ArrayLike, n: npt.ArrayLike, key: npt.ArrayLike) -> Rows:
    """Return the image of each index under the permutation of 0 … n - 1 that `key` selects.

    The arguments broadcast, so each index may have its own size and key.
    """
    image, sizes, keys = (
        np.array(words) for words in np.broadcast_arrays(_words(index), _words(n), _words(key))
    )
    if (image >= sizes).any():
        raise ValueError("each index must be below n")
    height = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    width = -(-sizes.astype(np.int64) // height.astype(np.int64)).astype(np.uint64)
    walking: slice | Rows = slice(None)
    while True:
        image[walking] = _feistel(image[walking], height[walking], width[walking], keys[walking])
        walking = outside = np.flatnonzero(image >= sizes)  # about one in sqrt(n)
        if not len(outside):
            return image.astype(np.int64)


def key_of(*numbers: npt.ArrayLike) -> Words:
    """Return a key that depends on all numbers and on their order; arrays broadcast."""
    key = _words(0)
    for number in numbers:
        key = _mix(key ^ _words(number))
    return key


def _words(numbers: npt.ArrayLike) -> Words:
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def _feistel(words: Words, height: Words, width: Words, keys: Words) -> Words:
    """Shift rows by a hash of the column and columns by a hash of the row, alternately."""
    row, column = words // width, words % width
    for number in range(0, ROUNDS, 2):
        row = (row + (_mix(column ^ _mix(keys + np.uint64(number))) >> np.uint64(8))) % height
        column = (column + (_mix(row ^ _mix(keys + np.uint64(number + 1))) >> np.uint64(8))) % width
    return row * width + column


def _mix(words: Words) -> Words:
    """Hash 64-bit words (the finaliser of SplitMix64: Steele et al., 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


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
        return np.concatenate(
            [np.zeros(0, np.int64), *(segment.rows for segment in self._held_out)]
        )

    @property
    def example(self) -> str:
        """Return an example question: the first held-out one, or the first that is trained on."""
        rows = self.held_out_rows if len(self.held_out_rows) else self.sampler.rows(0)
        return self.split.rows(rows[:1])[0][0]

    def validation(self, rank: int = 0, n_ranks: int = 1) -> dict[str, tuple[Ragged, Ragged]]:
        """Return the held-out rows, or those of a rank, by module."""
        by_module: dict[str, list[int]] = {}
        for segment in self._held_out:
            by_module.setdefault(segment.module, []).extend(segment.rows)
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
        number
        for number, segment in enumerate(segments)
        if weights is None or weights.get(segment.module, 0) > 0
    ]
    kept, held_out = list(segments), []
    for number, index in enumerate(used if count else ()):
        segment = segments[index]
        share = count // len(used) + (number < count % len(used))
        # At least one row of each segment; otherwise a small store would have no validation.
        most = max(int(segment.count * MOST_HELD_OUT), 1) if segment.count > 1 else 0
        if n_rows := min(share, most):
            n_kept = segment.count - n_rows
            kept[index] = replace(segment, count=n_kept)
            held_out.append(replace(segment, start=segment.start + n_kept, count=n_rows))
    return kept, held_out


@dataclass(frozen=True)
class _Pool:
    """Rows of one or several ranges, numbered from 0 without gaps."""

    starts: Rows
    ends: Rows  # cumulative sizes of the ranges

    @classmethod
    def of(cls, ranges: Sequence[Segment]) -> "_Pool":
        starts = np.array([segment.start for segment in ranges], np.int64)
        return cls(starts, np.cumsum([segment.count for segment in ranges], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def rows(self, numbers: Rows) -> Rows:
        which = np.searchsorted(self.ends, numbers, side="right")
        before = np.concatenate([[0], self.ends[:-1]])
        return self.starts[which] + numbers - before[which]


@dataclass(frozen=True)
class _Mixture:
    """Modules in fixed proportions: in each block of rows, each module has exactly its quota."""

    pools: Sequence[_Pool]
    quotas: Rows
    seed: int

    def rows(self, position: Rows) -> Rows:
        """Return a row for each position of the sequence: the next row of the module there."""
        blocks, number = np.divmod(position, BLOCK)
        module, turn = np.empty_like(position), np.empty_like(position)
        for block in np.unique(blocks):
            here = blocks == block
            modules, turns = self._block(int(block))
            module[here], turn[here] = modules[number[here]], turns[number[here]]
        sizes = np.array([len(pool) for pool in self.pools])[module]
        epoch, number = np.divmod(turn, sizes)
        number = permute(number, sizes, key_of(self.seed, epoch, module, 2))
        rows = np.empty_like(position)
        for present in np.unique(module):
            rows[module == present] = self.pools[present].rows(number[module == present])
        return rows

    def _block(self, block: int) -> tuple[Rows, Rows]:
        """Return the module at each position of a block, and its running index within the module.

        The index counts all earlier blocks too, each of which has exactly the quota of the module.
        """
        shuffled = permute(np.arange(BLOCK), BLOCK, key_of(self.seed, block, 1))
        module = np.searchsorted(np.cumsum(self.quotas), shuffled, side="right")
        turn = np.empty_like(module)
        by_module = np.argsort(module, kind="stable")
        first = np.cumsum(self.quotas) - self.quotas
        turn[by_module] = np.arange(BLOCK) - first[module[by_module]]
        return module, block * self.quotas[module] + turn


class Sampler:
    """The batches of a training run.

    Without weights, each row occurs once per epoch, in a different order in each epoch. With
    weights, the modules have these proportions in each batch, and all rows of a module are used
    once before any of them is repeated.
    """

    def __init__(
        self,
        ranges: Sequence[Segment],
        *,
        batch_size: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        filled = [segment for segment in ranges if segment.count]
        if not filled:
            raise SettingsError("there are no rows to sample from")
        if batch_size < 1:
            raise SettingsError(f"a batch must have at least one sample, not {batch_size}")
        self.batch_size, self.seed = batch_size, seed
        # Sorted, so that a mixture does not depend on the order of the files in a store.
        self.modules = sorted({segment.module for segment in filled})
        self._all = _Pool.of(filled)
        self._mixture = None
        if weights is not None:
            by_module: dict[str, list[Segment]] = {name: [] for name in self.modules}
            for segment in filled:
                by_module[segment.module].append(segment)
            pools = [_Pool.of(ranges) for ranges in by_module.values()]
            self._mixture = _Mixture(pools, _quotas(weights, self.modules), seed)

    def __len__(self) -> int:
        """The number of rows to sample from, which are those of modules with a positive weight."""
        if self._mixture is None:
            return len(self._all)
        pools = zip(self._mixture.pools, self._mixture.quotas, strict=True)
        return sum(len(pool) for pool, quota in pools if quota)

    def rows(self, step: int, rank: int = 0, n_ranks: int = 1) -> Rows:
        """Return the rows of the batch of a step, or those of one of several ranks."""
        if not 0 <= rank < n_ranks:
            raise ValueError(f"rank {rank} is not one of {n_ranks}")
        position = np.arange(step * self.batch_size + rank, (step + 1) * self.batch_size, n_ranks)
        if self._mixture is not None:
            return self._mixture.rows(position)
        epoch, number = np.divmod(position, len(self._all))
        return self._all.rows(permute(number, len(self._all), key_of(self.seed, epoch)))

    def epoch(self, step: int) -> float:
        """Return the number of samples before a step, divided by the number of rows."""
        return step * self.batch_size / len(self)


def _quotas(weights: Mapping[str, float], modules: Sequence[str]) -> Rows:
    """Return the number of positions of each module in a block, in proportion to its weight."""
    for name, weight in weights.items():
        if name not in modules:
            raise SettingsError(
                f"there is no module {name!r} to weigh{nearest(name, modules)}; "
                f"there are {', '.join(modules)}"
            )
        if not 0 <= weight < float("inf"):
            raise SettingsError(f"the weight of {name} must be a number from 0 up, not {weight}")
    values = np.array([weights.get(module, 0.0) for module in modules])
    if not values.sum():
        raise SettingsError("at least one module must have a weight above 0")
    shares = values / values.sum() * BLOCK
    quotas: npt.NDArray[Any] = np.floor(shares).astype(np.int64)
    left_over = BLOCK - int(quotas.sum())
    quotas[np.argsort(quotas - shares, kind="stable")[:left_over]] += 1
    for module in np.flatnonzero((values > 0) & (quotas == 0)):
        raise SettingsError(
            f"the weight of {modules[int(module)]} is too small a share: leave the module out, or "
            f"give it at least one in {BLOCK:,}"
        )
    return quotas


class Prefetcher(Generic[T]):
    """Prepares the batches of the next steps in a thread, while the current step is computed.

    >>> with Prefetcher(feed.tokens, first=0) as prefetcher:
    ...     source, target = prefetcher.next()
    """

    def __init__(self, prepare: Callable[[int], T], first: int, depth: int = STEPS_AHEAD) -> None:
        self.waited = 0.0  # seconds in total
        self._prepare, self._step, self._depth = prepare, first, depth
        self._prepared: deque[Future[T]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def next(self) -> T:
        """Return what the next step needs; raise the exception that preparing it has raised."""
        while len(self._prepared) < self._depth:
            self._prepared.append(self._thread.submit(self._prepare, self._step))
            self._step += 1
        start = time.perf_counter()
        result = self._prepared.popleft().result()
        self.waited += time.perf_counter() - start
        return result
