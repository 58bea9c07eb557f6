"""The result of the tensor-product analysis: shares of the variance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tp_transformer.foundation.statistics import FEWEST, Interval
from tp_transformer.interpret.core.record import ENCODER, TITLES
from tp_transformer.interpret.core.result import Result, ResultTable, Values


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the variance of the tensor products of one head; see the analysis module."""

    hadamard: float
    hadamard_interval: Interval | None  # 95%, over resampled questions; None for too few
    aligned: float
    optimum: float
    ceiling: float
    random: float  # mean over random rotations
    random_range: Interval  # of 95% of random rotations

    @property
    def is_beyond_random(self) -> bool:
        """Whether the learned coordinates keep more than 97.5% of random coordinates do.

        Of 96 untrained heads 6 did, more than the expected 2 or 3: Xavier-uniform weights are not
        quite isotropic. This is why untrained models are reported as well.
        """
        return self.hadamard > self.random_range[1]


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """Shares of the variance and of the second moments about zero of one head."""

    layer: int
    head: int
    centred: Shares
    raw: Shares

    def values(self) -> Values:
        """Return the numbers."""
        return {
            "layer": self.layer,
            "head": self.head,
            "variance": self.centred,
            "second_moment": self.raw,
        }


@dataclass(frozen=True, kw_only=True)
class TensorProductResult(Result):
    """The shares of every head, in the model and in untrained models."""

    where: str  # encoder, decoder or cross
    binding: str
    d_head: int
    is_held_out: bool  # whether directions were fitted on other questions
    n_fitted: int
    n_scored: int
    heads: tuple[HeadShares, ...]
    initial: tuple[tuple[HeadShares, ...], ...]  # of each untrained model

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return "tensor-product" if self.where == ENCODER else f"tensor-product-{self.where}"

    def summary(self) -> list[str]:
        """Return the heads beyond random rotations, and how to read the shares."""
        beyond = [_beyond(heads) for heads in self.initial]
        lines = [
            f"{TITLES[self.where]}: in {_beyond(self.heads)} of {len(self.heads)} heads the "
            "Hadamard product keeps more of the variance of filler (x) role than 97.5% of random "
            f"rotations do; in {len(self.initial)} untrained models, in {min(beyond)} to "
            f"{max(beyond)}.",
        ]
        if self.heads[0].centred.hadamard_interval is None:
            lines.append(f"Fewer than {FEWEST} questions are scored: a share has no interval.")
        lines.append(
            "The model learned these vectors together with the Hadamard product: they already are "
            "M^T v and N^T r of section 7 if training found these rotations. The share measures "
            "how well the learned coordinates follow the principal product directions, not how "
            "well the model works: nothing in the loss rewards variance."
        )
        if self.binding != "hadamard":
            lines.append(
                f"This model binds by {self.binding}: the share is what the Hadamard product would "
                "keep of these fillers and roles, not what the model keeps."
            )
        if not self.is_held_out:
            lines.append(
                "With a single question, directions are fitted and scored on the same positions."
            )
        return lines

    def tables(self) -> list[ResultTable]:
        """Return the shares in the model, and their range in untrained models."""
        names = ("hadamard", "aligned", "optimum", "random")
        untrained = f"{len(self.initial)} untrained models"
        table = ResultTable(
            title="Share of the variance of filler (x) role, averaged over heads",
            columns=("", "Hadamard", "best rotations", "best directions", "random rotations"),
            rows=(
                ("this model", *(f"{_mean(self.heads, name):.1%}" for name in names)),
                (untrained, *map(self._initial_range, names)),
            ),
            note=f"best rotations: the best that were found. best directions: {self.d_head}. "
            f"1 / d_head is {1 / self.d_head:.1%}.",
        )
        return [table]

    def _initial_range(self, name: str) -> str:
        """Return the smallest and the largest mean over heads of an untrained model."""
        found = [_mean(heads, name) for heads in self.initial]
        return f"{min(found):.1%} to {max(found):.1%}"

    def values(self) -> Values:
        """Return the numbers."""
        return {
            **super().values(),
            "expected_random": 1 / self.d_head,
            "heads": [head.values() for head in self.heads],
            "initial": [[head.values() for head in heads] for heads in self.initial],
        }


def _mean(heads: Sequence[HeadShares], name: str) -> float:
    return float(np.mean([getattr(head.centred, name) for head in heads]))


def _beyond(heads: Sequence[HeadShares]) -> int:
    return sum(head.centred.is_beyond_random for head in heads)
