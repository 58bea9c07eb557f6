"""The result of the information analysis: errors of reconstructed states."""

from dataclasses import dataclass

from tp_transformer.foundation.statistics import FEWEST, Interval
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.result import Result, ResultTable, Values
from tp_transformer.published import RECONSTRUCTION_ERROR

MAP_DRAWS = 5  # random value maps
POSITIONS, PROBLEMS = "positions", "problems"  # possible meanings of "samples" in section 6.1


@dataclass(frozen=True, kw_only=True)
class InSample:
    """The paper's protocol, fitted and scored on the same positions, averaged over draws of them.

    Attributes:
        reading: the meaning of a sample, POSITIONS or PROBLEMS
        n: number of samples in a draw
        n_draws: number of draws
        n_positions: mean number of positions in a draw
        mse: mean squared error over positions and dimensions, of each head
        mse_interval: interval that holds the error, averaged over heads, of 95% of other single
            draws of n samples; None if there are too few samples for more than one draw
        r2: R2 of each head
        optimum_r2: R2 of the first d_head principal components of the same positions
        control_r2: R2 of random features of the same size
        expected_r2: its expectation, d_head / (n_positions - 1)
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


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The held-out protocol: each question is scored by maps that were fitted on others.

    Attributes:
        n_positions: number of scored positions
        mse: mean squared error over positions and dimensions, of each head
        r2: R2 of each head
        r2_intervals: 95% intervals over resampled questions; None for too few questions
        average_interval: the same of the R2 averaged over heads
        optimum_mse: error of the first d_head principal components of the other questions
        optimum_r2: their R2
        random_map_r2: mean R2 of random value maps
        random_map_range: smallest and largest R2 of random value maps
        mean_mse: error of the mean of the other questions, which uses no information
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
    """The reconstruction of one state; held-out scores need at least two questions."""

    name: str  # input or output
    by_positions: InSample
    by_problems: InSample
    held_out: HeldOut | None

    @property
    def readings(self) -> tuple[InSample, InSample]:
        """The paper's protocol in both readings of its samples."""
        return self.by_positions, self.by_problems

    def values(self) -> Values:
        """Return the numbers, with averages over heads."""
        paper = {found.reading: _with_averages(found) for found in self.readings}
        if self.held_out is None:
            missing = "a single question leaves none to hold out"
            return {"paper_protocol": paper, "held_out": None, "held_out_missing": missing}
        return {"paper_protocol": paper, "held_out": _with_averages(self.held_out)}


def _with_averages(found: InSample | HeldOut) -> Values:
    return {**vars(found), "average_mse": found.mse.mean(), "average_r2": found.r2.mean()}


@dataclass(frozen=True, kw_only=True)
class InformationResult(Result):
    """The reconstruction of a layer's input and output from the value vector of each head."""

    kind: str  # tp-transformer or transformer
    layer: int
    d_model: int
    d_head: int
    states: tuple[StateInformation, StateInformation]
    beside: "InformationResult | None" = None  # of a second model

    name = "information"

    @property
    def models(self) -> "list[InformationResult]":
        """This result, and that of the second model if there is one."""
        return [self] if self.beside is None else [self, self.beside]

    def summary(self) -> list[str]:
        """Return the errors of each state, and what they can and cannot show."""
        return [
            line if self.beside is None else f"{result.context.model['name']}: {line}"
            for result in self.models
            for state in result.states
            for line in result._state_summary(state)
        ]

    def _state_summary(self, state: StateInformation) -> list[str]:
        errors = " and ".join(
            f"{found.mse.mean():.3f} for {found.n} {found.reading}" for found in state.readings
        )
        lines = [
            f"The {state.name} of encoder layer {self.layer}: by the paper's protocol the mean "
            f"squared error is {errors}, averaged over heads (the paper's: "
            f"{RECONSTRUCTION_ERROR[self.kind]}). The paper leaves open whether its "
            '"100 samples" are positions or problems. They are scored with '
            f"{self.d_head + 1} numbers per dimension that were fitted to them, and positions of "
            "one question resemble each other: the protocol can show that information is missing, "
            "not that it is there."
        ]
        sound = state.held_out
        if sound is None:
            return [*lines, "With a single question nothing can be held out."]
        low, high = sound.random_map_range
        return [
            *lines,
            f"On held-out questions R2 is {sound.r2.mean():.3f}; random value maps reach "
            f"{low:.3f} to {high:.3f}.",
        ]

    def tables(self) -> list[ResultTable]:
        """Return the errors and R2 of each state by both protocols, for each model."""
        return [
            ResultTable(
                title=f"Reconstruction from one head, averaged over heads: "
                f"{result.context.model['name']}, layer {result.layer}",
                columns=("state", "error", "R2", f"best {result.d_head} numbers", "random"),
                rows=tuple(row for state in result.states for row in _rows(state)),
                note="error: mean squared error; below it, an interval that holds 95% of single "
                "draws. Below R2: its 95% interval over questions. best numbers: R2 of principal "
                f"components. random: R2 of random vectors; held out, of {MAP_DRAWS} random value "
                "maps, and their range. -: no interval, because there are too few samples to draw "
                f"from, or fewer than {FEWEST} questions.",
            )
            for result in self.models
        ]

    def values(self) -> Values:
        """Return the numbers."""
        values: Values = {
            "layer": self.layer,
            "d_model": self.d_model,
            "d_head": self.d_head,
            "error": "mean over positions and dimensions; summed over dimensions it is d_model "
            "times as much",
            "samples": "the paper leaves open whether its 100 samples are positions or problems",
            "paper_mse": RECONSTRUCTION_ERROR[self.kind],
            "states": {state.name: state.values() for state in self.states},
        }
        if self.beside is not None:
            other = self.beside
            origin = other.context.sample.origin
            values["beside"] = [{"model": other.context.model, "origin": origin, **other.values()}]
        return values


def _rows(state: StateInformation) -> list[tuple[str, ...]]:
    """Return a row for each reading of the paper's protocol, and one for held-out questions."""
    rows: list[tuple[str, ...]] = [
        (
            f"{state.name}, {found.n} {found.reading}",
            f"{found.mse.mean():.3f}\n{_in_words(found.mse_interval)}",
            f"{found.r2.mean():.3f}",
            f"{found.optimum_r2:.3f}",
            f"{found.control_r2:.3f}",
        )
        for found in state.readings
    ]
    sound = state.held_out
    if sound is not None:
        rows.append(
            (
                f"{state.name}, held out",
                f"{sound.mse.mean():.3f}",
                f"{sound.r2.mean():.3f}\n{_in_words(sound.average_interval)}",
                f"{sound.optimum_r2:.3f}",
                f"{sound.random_map_r2:.3f}\n{_in_words(sound.random_map_range)}",
            )
        )
    return rows


def _in_words(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
