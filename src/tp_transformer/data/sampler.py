"""The rows of each batch, as a pure function of the seed and the step.

Nothing is remembered between steps. A run can therefore resume at any step with any number of
ranks, and the sequence of samples is always the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tp_transformer.data.manifest import Segment
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.permutation import key_of, permute
from tp_transformer.foundation.settings import nearest

Rows = npt.NDArray[np.int64]

BLOCK = 2**12  # places in which a mixture is exact: weights are rounded to multiples of 1 / BLOCK


@dataclass(frozen=True)
class _Pool:
    """Rows of one or several ranges, numbered from 0 without gaps."""

    starts: Rows
    ends: Rows  # cumulative sizes of the ranges

    @classmethod
    def of(cls, ranges: Sequence[Segment]) -> "_Pool":
        starts = np.array([one.start for one in ranges], np.int64)
        return cls(starts, np.cumsum([one.count for one in ranges], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def rows(self, numbers: Rows) -> Rows:
        which = np.searchsorted(self.ends, numbers, side="right")
        before = np.concatenate([[0], self.ends[:-1]])
        return self.starts[which] + numbers - before[which]


@dataclass(frozen=True)
class _Mixture:
    """Modules in fixed proportions: in each block of places, each module has exactly its quota."""

    pools: Sequence[_Pool]
    quotas: Rows
    seed: int

    def rows(self, place: Rows) -> Rows:
        """Return a row for each place: the next row of the module at that place."""
        blocks, number = np.divmod(place, BLOCK)
        module, turn = np.empty_like(place), np.empty_like(place)
        for block in np.unique(blocks):
            here = blocks == block
            modules, turns = self._block(int(block))
            module[here], turn[here] = modules[number[here]], turns[number[here]]
        sizes = np.array([len(pool) for pool in self.pools])[module]
        epoch, number = np.divmod(turn, sizes)
        number = permute(number, sizes, key_of(self.seed, epoch, module, 2))
        rows = np.empty_like(place)
        for present in np.unique(module):
            rows[module == present] = self.pools[present].rows(number[module == present])
        return rows

    def _block(self, block: int) -> tuple[Rows, Rows]:
        """Return the module at each place of a block, and its running index within the module.

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
        filled = [one for one in ranges if one.count]
        if not filled:
            raise SettingsError("there are no rows to sample from")
        if batch_size < 1:
            raise SettingsError(f"a batch must have at least one sample, not {batch_size}")
        self.batch_size, self.seed = batch_size, seed
        # Sorted, so that a mixture does not depend on the order of the files in a store.
        self.modules = sorted({one.module for one in filled})
        self._all = _Pool.of(filled)
        self._mixture = None
        if weights is not None:
            by_module: dict[str, list[Segment]] = {name: [] for name in self.modules}
            for one in filled:
                by_module[one.module].append(one)
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
        place = np.arange(step * self.batch_size + rank, (step + 1) * self.batch_size, n_ranks)
        if self._mixture is not None:
            return self._mixture.rows(place)
        epoch, number = np.divmod(place, len(self._all))
        return self._all.rows(permute(number, len(self._all), key_of(self.seed, epoch)))

    def epoch(self, step: int) -> float:
        """Return the number of samples before a step, divided by the number of rows."""
        return step * self.batch_size / len(self)


def _quotas(weights: Mapping[str, float], modules: Sequence[str]) -> Rows:
    """Return the number of places of each module in a block, in proportion to its weight."""
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
