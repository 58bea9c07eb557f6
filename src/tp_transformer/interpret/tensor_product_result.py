"""What the Hadamard product keeps of the tensor product, in words and values (section 7)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tp_transformer.interpret.outcome import Values
from tp_transformer.interpret.record import TITLES
from tp_transformer.scoring.statistics import FEWEST, Interval


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What d_head numbers keep of the variance of one head's tensor products; see the module."""

    hadamard: float
    hadamard_interval: Interval | None  # 95%, questions drawn anew; None where they are too few
    aligned: float
    optimum: float
    ceiling: float
    random: float  # the mean of random rotations
    random_range: Interval  # of 95% of them

    @property
    def is_beyond_random(self) -> bool:
        """Whether the learned coordinates keep more than 97.5% of random ones.

        Of 96 heads with initial weights 6 did, not the 2 or 3 of a test: Xavier's uniform weights
        are not quite the same in all directions. So heads have initial ones beside them.
        """
        return self.hadamard > self.random_range[1]


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """One head of one layer: shares of the variance, and of the second moments about zero."""

    layer: int
    head: int
    centred: Shares
    raw: Shares

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "layer": self.layer,
            "head": self.head,
            "variance": vars(self.centred),
            "second_moment": vars(self.raw),
        }


@dataclass(frozen=True, kw_only=True)
class TensorProduct:
    """What the Hadamard product keeps, head by head, in a model and with initial weights."""

    where: str  # encoder, decoder or cross
    binding: str
    d_head: int
    is_held_out: bool  # whether directions were fitted on other questions than they are scored on
    n_fitted: int
    n_scored: int
    heads: tuple[HeadShares, ...]
    initial: tuple[tuple[HeadShares, ...], ...]  # of each draw of weights, the same configuration
    seed: int

    @property
    def meaning(self) -> list[str]:
        """What the numbers say, and what they cannot."""
        beyond = [_beyond(draw) for draw in self.initial]
        lines = [
            f"{TITLES[self.where]}, this model: of the variance of filler (x) role, the Hadamard "
            "product keeps "
            f"{_mean(self.heads, 'hadamard'):.1%} on average over heads; the best rotations found, "
            f"{_mean(self.heads, 'aligned'):.1%}; the {self.d_head} best directions, "
            f"{_mean(self.heads, 'optimum'):.1%}; random rotations, "
            f"{_mean(self.heads, 'random'):.1%} (1 / d_head = {1 / self.d_head:.1%}). In "
            f"{_beyond(self.heads)} of {len(self.heads)} heads it keeps more than 97.5% of random "
            "rotations do.",
            f"Initial weights, drawn {len(self.initial)} times: the Hadamard product keeps "
            f"{self._of_draws('hadamard')}; the best rotations found, {self._of_draws('aligned')}; "
            f"the best directions, {self._of_draws('optimum')}; random rotations, "
            f"{self._of_draws('random')}. In {min(beyond)} to {max(beyond)} of {len(self.heads)} "
            "heads it keeps more than 97.5% of random rotations do.",
        ]
        if self.heads[0].centred.hadamard_interval is None:
            lines.append(f"Fewer than {FEWEST} questions are scored: a share has no interval.")
        lines.append(
            "The vectors are those that the model learned with the Hadamard product in place: they "
            "already are section 7's M^T v and N^T r, if learning found them. The share says how "
            "well the learned coordinates follow the principal product directions, not how well "
            "the model works: nothing in the loss rewards variance."
        )
        if self.binding != "hadamard":
            lines.append(
                f"This model binds by {self.binding}: the Hadamard product's share is what it "
                "would keep of these fillers and roles, not what the model does."
            )
        if not self.is_held_out:
            lines.append(
                "With a single question, directions are fitted and scored on the same positions."
            )
        return lines

    def _of_draws(self, name: str) -> str:
        """The least and the greatest average over heads that a draw of weights has."""
        found = [_mean(draw, name) for draw in self.initial]
        return f"{min(found):.1%} to {max(found):.1%}"

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "seed": self.seed,
            "where": self.where,
            "binding": self.binding,
            "d_head": self.d_head,
            "is_held_out": self.is_held_out,
            "n_fitted": self.n_fitted,
            "n_scored": self.n_scored,
            "expected_random": 1 / self.d_head,
            "heads": [one.to_values() for one in self.heads],
            "initial": [[one.to_values() for one in draw] for draw in self.initial],
            "meaning": self.meaning,
        }


def _mean(heads: Sequence[HeadShares], name: str) -> float:
    return float(np.mean([getattr(one.centred, name) for one in heads]))


def _beyond(heads: Sequence[HeadShares]) -> int:
    return sum(one.centred.is_beyond_random for one in heads)
