"""What the heads of a layer tell of its states, in words and values (section 6.1)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.outcome import Values
from tp_transformer.published import RECONSTRUCTION_ERROR
from tp_transformer.scoring.statistics import FEWEST, Interval

Floats = npt.NDArray[np.float64]

MAP_DRAWS = 5  # of random value maps
POSITIONS, PROBLEMS = "positions", "problems"  # what the samples of section 6.1 may be


@dataclass(frozen=True, kw_only=True)
class InSample:
    """The paper's protocol, fitted and scored on the same positions, averaged over draws of them.

    Attributes:
        reading: what one of the paper's samples is, POSITIONS or PROBLEMS
        n: samples in a draw
        n_draws: how many times they are drawn
        n_positions: in a draw, on average
        mse: of each head, mean over positions and dimensions
        mse_interval: of the error averaged over heads, for 95% of other single draws of n samples;
            None where there are too few samples for more than one draw
        r2: of each head
        optimum_r2: of the best d_head numbers, the principal components of these positions
        control_r2: of random features of the same size, measured
        expected_r2: of random features of the same size, in theory: d_head / (n_positions - 1)
    """

    reading: str
    n: int
    n_draws: int
    n_positions: float
    mse: Floats  # (head)
    mse_interval: Interval | None
    r2: Floats  # (head)
    optimum_r2: float
    control_r2: float
    expected_r2: float

    def to_values(self) -> Values:
        """The numbers as JSON has them, with averages over heads."""
        return {**vars(self), "average_mse": self.mse.mean(), "average_r2": self.r2.mean()}


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The sound protocol: each question is scored by maps that were fitted on others.

    Attributes:
        n_positions: how many are scored
        mse: of each head, mean over positions and dimensions
        r2: of each head
        r2_intervals: of each head, 95%, questions drawn anew; None where they are too few
        average_interval: of the R2 averaged over heads, likewise
        optimum_mse: of the d_head principal components of the other questions
        optimum_r2: the same as a share of the variance
        random_map_r2: of value maps drawn at random, on average
        random_map_range: of the worst and of the best of them
        mean_mse: of no information at all, the other questions' mean
    """

    n_positions: int
    mse: Floats  # (head)
    r2: Floats  # (head)
    r2_intervals: tuple[Interval, ...] | None
    average_interval: Interval | None
    optimum_mse: float
    optimum_r2: float
    random_map_r2: float
    random_map_range: Interval
    mean_mse: float


@dataclass(frozen=True, kw_only=True)
class StateInformation:
    """What the heads tell of one state; held-out scores need two questions."""

    name: str  # input or output
    by_positions: InSample
    by_problems: InSample
    held_out: HeldOut | None

    @property
    def readings(self) -> tuple[InSample, InSample]:
        """The paper's protocol, by what its samples may be."""
        return self.by_positions, self.by_problems

    def to_values(self) -> Values:
        """The numbers as JSON has them, with averages over heads."""
        sound = self.held_out
        values: Values = {
            "paper_protocol": {one.reading: one.to_values() for one in self.readings},
            "held_out": None,
        }
        if sound is not None:
            values["held_out"] = {
                **vars(sound),
                "average_mse": sound.mse.mean(),
                "average_r2": sound.r2.mean(),
            }
        else:
            values["held_out_missing"] = "a single question leaves none to hold out"
        return values


@dataclass(frozen=True, kw_only=True)
class Information:
    """What each head of a layer tells of the layer's input and of its output."""

    kind: str  # tp-transformer or transformer
    layer: int
    d_model: int
    d_head: int
    states: tuple[StateInformation, StateInformation]
    seed: int

    @property
    def meaning(self) -> list[str]:
        """What the numbers say, and what they cannot."""
        return [line for state in self.states for line in self._meaning_of(state)]

    def _meaning_of(self, state: StateInformation) -> list[str]:
        sound = state.held_out
        errors = "; ".join(map(self._error_of, state.readings))
        lines = [
            f"The {state.name} of encoder layer {self.layer}, by the paper's protocol, averaged "
            f"over heads (the paper's mean squared error: {RECONSTRUCTION_ERROR[self.kind]}). The "
            'paper leaves open whether its "100 samples" are positions or problems. '
            f"{errors}. What is scored is what {self.d_head + 1} numbers per dimension were fitted "
            "to, and positions of one question resemble each other: it can show that information "
            "is missing, not that it is there."
        ]
        if sound is None:
            return [*lines, "With a single question nothing can be held out."]
        return [
            *lines,
            f"On questions held out: mean squared error {sound.mse.mean():.3f}, "
            f"R2 {sound.r2.mean():.3f} ({_in_words(sound.average_interval)}). The best "
            f"{self.d_head} numbers reach {sound.optimum_r2:.3f}, {MAP_DRAWS} value maps drawn at "
            f"random {sound.random_map_r2:.3f} on average ({sound.random_map_range[0]:.3f} to "
            f"{sound.random_map_range[1]:.3f}).",
        ]

    def _error_of(self, one: InSample) -> str:
        """One reading of the paper's protocol, beside random vectors and the optimum."""
        spread = (
            "no interval: too few to draw from"
            if one.mse_interval is None
            else f"95% of single draws {one.mse_interval[0]:.3f} to {one.mse_interval[1]:.3f}"
        )
        return (
            f"{one.n} {one.reading}: mean squared error {one.mse.mean():.3f} ({spread}), R2 "
            f"{one.r2.mean():.3f}, where random vectors reach {one.control_r2:.3f} (expected: "
            f"{one.expected_r2:.3f}) and the best {self.d_head} numbers {one.optimum_r2:.3f}"
        )

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "seed": self.seed,
            "layer": self.layer,
            "d_model": self.d_model,
            "d_head": self.d_head,
            "error": "mean over positions and dimensions; summed over dimensions it is d_model "
            "times as much",
            "samples": "the paper leaves open whether its 100 samples are positions or problems",
            "paper_mse": RECONSTRUCTION_ERROR[self.kind],
            "states": {state.name: state.to_values() for state in self.states},
            "meaning": self.meaning,
        }


def _in_words(interval: Interval | None) -> str:
    if interval is None:
        return f"no interval: fewer than {FEWEST} questions"
    return f"95% {interval[0]:.3f} to {interval[1]:.3f}"
