"""The batches of a store, step by step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tp_transformer.data.batch import Batch, cut
from tp_transformer.data.sampler import Sampler
from tp_transformer.data.store import Split
from tp_transformer.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class FeedConfig:
    """What to train on.

    Attributes:
        batch_size: samples in a batch, over all ranks
        modules: names of modules, or patterns such as arithmetic__*
        weights: shares of the modules in every batch; absent means by their numbers of rows
    """

    batch_size: int = 1024
    modules: tuple[str, ...] = ("*",)
    weights: dict[str, float] | None = None


class Feed:
    """What a model trains on: for each step the rows that the sampler names, as batches.

    It has no state: `parts(step)` is the same whenever it is asked for.
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
    ) -> None:
        segments = split.select(modules)
        self.sampler = Sampler(segments, batch_size=batch_size, seed=seed, weights=weights)
        self.vocabulary = vocabulary or Vocabulary()
        self._split = split

    def parts(self, step: int, rank: int = 0, n_ranks: int = 1) -> list[Batch]:
        """A step's batch, or a rank's share of it, cut into parts with little padding."""
        rows = self.sampler.rows(step, rank, n_ranks)
        return cut(*self._split.tokens(rows, self.vocabulary), self.vocabulary.pad)
