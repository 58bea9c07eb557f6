"""How much of a hidden state the value vector of one head holds (section 6.1).

The paper reconstructs the hidden state of the encoder's last layer from the value vector of each
head by an affine map, on 100 samples. Two states may be meant, and both are analysed: the input of
the value map, and the output of the layer. There are two protocols:

- The paper's: fitted and scored on the same positions. A large error shows that information is
  missing; a small one does not show that it is there (docs/interpretation.md). Samples may be
  positions or problems. Both readings are measured, over many draws, because single draws of 100
  positions differ by several percent.
- Held-out: fitted on some questions and scored on others, over all positions. Controls: the first
  d_head principal components, which are the best that any d_head numbers can do, and random value
  maps. If states lie in few dimensions, any map keeps nearly everything.

The paper's formula leaves open whether the error is averaged or summed over the dimensions. Here it
is averaged ("mean squared error"); the sum is d_model times as large. R2 is the explained share of
the total variance of the states, over all dimensions together.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import cast

import numpy as np
import torch

from tp_transformer import figures
from tp_transformer.errors import UserError
from tp_transformer.interpret.analyses import InformationOptions, checked_model, layer_index
from tp_transformer.interpret.core.chart import BAND, ChartPanel, Marks, chart, look
from tp_transformer.interpret.core.record import Activations, Floats, Integers, record
from tp_transformer.interpret.core.result import Context, Result, ResultTable, Values, in_words
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model.checkpoint import describe, load
from tp_transformer.model.layers import EncoderCell
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.published import RECONSTRUCTION_ERROR
from tp_transformer.scoring.statistics import CONFIDENCE, FEWEST, Interval, resample

POSITIONS, PROBLEMS = "positions", "problems"  # possible meanings of "samples" in section 6.1
FOLDS = 5
SAMPLE_DRAWS = 100  # draws of the paper's n samples
CONTROL_DRAWS = 20  # draws of random features, for the paper's protocol
MAP_DRAWS = 5  # random value maps


@dataclass(frozen=True, kw_only=True)
class InSample:
    """The paper's protocol, fitted and scored on the same positions, averaged over draws of them.

    The interval holds the error, averaged over heads, of 95% of other single draws of n samples; it
    is None if there are too few samples for more than one draw.
    """

    reading: str  # the meaning of a sample, POSITIONS or PROBLEMS
    n: int  # number of samples in a draw
    n_draws: int
    n_positions: float  # mean number of positions in a draw
    mse: Floats  # mean squared error over positions and dimensions, of each head
    mse_interval: Interval | None
    r2: Floats  # of each head
    optimum_r2: float  # of the first d_head principal components of the same positions
    control_r2: float  # of random features of the same size
    expected_r2: float  # its expectation, d_head / (n_positions - 1)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The held-out protocol: each question is scored by maps that were fitted on others.

    Intervals are 95% over resampled questions, and None for too few questions.
    """

    n_positions: int  # number of scored positions
    mse: Floats  # mean squared error over positions and dimensions, of each head
    r2: Floats  # of each head
    r2_intervals: tuple[Interval, ...] | None
    average_interval: Interval | None  # of the R2 averaged over heads
    optimum_mse: float  # of the first d_head principal components of the other questions
    optimum_r2: float
    random_map_r2: float  # mean over random value maps
    random_map_range: Interval  # smallest and largest R2 of random value maps
    mean_mse: float  # of the mean of the other questions, which uses no information


@dataclass(frozen=True, kw_only=True)
class StateInformation:
    """The reconstruction of one state; held-out scores need at least two questions."""

    name: str  # input or output
    readings: tuple[InSample, InSample]  # the paper's protocol in both readings of its samples
    held_out: HeldOut | None

    def values(self) -> Values:
        values: Values = {
            "paper_protocol": {scores.reading: _with_averages(scores) for scores in self.readings},
            "held_out": self.held_out and _with_averages(self.held_out),
        }
        if self.held_out is None:
            values["held_out_missing"] = "a single question leaves none to hold out"
        return values

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each reading of the paper's protocol, and one for held-out questions."""
        rows: list[tuple[str, ...]] = [
            (
                f"{self.name}, {scores.n} {scores.reading}",
                f"{scores.mse.mean():.3f}\n{in_words(scores.mse_interval)}",
                f"{scores.r2.mean():.3f}",
                f"{scores.optimum_r2:.3f}",
                f"{scores.control_r2:.3f}",
            )
            for scores in self.readings
        ]
        if (held_out := self.held_out) is not None:
            rows.append(
                (
                    f"{self.name}, held out",
                    f"{held_out.mse.mean():.3f}",
                    f"{held_out.r2.mean():.3f}\n{in_words(held_out.average_interval)}",
                    f"{held_out.optimum_r2:.3f}",
                    f"{held_out.random_map_r2:.3f}\n{in_words(held_out.random_map_range)}",
                )
            )
        return rows


def _with_averages(scores: InSample | HeldOut) -> Values:
    return {**vars(scores), "average_mse": scores.mse.mean(), "average_r2": scores.r2.mean()}


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
        return [
            line if self.beside is None else f"{result.context.model['name']}: {line}"
            for result in self.models
            for state in result.states
            for line in result._state_summary(state)
        ]

    def _state_summary(self, state: StateInformation) -> list[str]:
        errors = " and ".join(
            f"{scores.mse.mean():.3f} for {scores.n} {scores.reading}" for scores in state.readings
        )
        if state.held_out is None:
            sound = "With a single question nothing can be held out."
        else:
            sound = (
                f"On held-out questions R2 is {state.held_out.r2.mean():.3f}; random value maps "
                f"reach {in_words(state.held_out.random_map_range)}."
            )
        return [
            f"The {state.name} of encoder layer {self.layer}: by the paper's protocol the mean "
            f"squared error is {errors}, averaged over heads (the paper's: "
            f"{RECONSTRUCTION_ERROR[self.kind]}). The paper leaves open whether its "
            '"100 samples" are positions or problems. They are scored with '
            f"{self.d_head + 1} numbers per dimension that were fitted to them, and positions of "
            "one question resemble each other: the protocol can show that information is missing, "
            "not that it is there.",
            sound,
        ]

    def tables(self) -> list[ResultTable]:
        return [
            ResultTable(
                title=f"Reconstruction from one head, averaged over heads: "
                f"{result.context.model['name']}, layer {result.layer}",
                columns=("state", "error", "R2", f"best {result.d_head} numbers", "random"),
                rows=tuple(row for state in result.states for row in state.rows()),
                note="error: mean squared error; below it, an interval that holds 95% of single "
                "draws. Below R2: its 95% interval over questions. best numbers: R2 of principal "
                f"components. random: R2 of random vectors; held out, of {MAP_DRAWS} random value "
                "maps, and their range. -: no interval, because there are too few samples to draw "
                f"from, or fewer than {FEWEST} questions.",
            )
            for result in self.models
        ]

    def values(self) -> Values:
        values: Values = {
            "layer": self.layer,
            "d_model": self.d_model,
            "d_head": self.d_head,
            "error": "mean over positions and dimensions; summed over dimensions it is d_model "
            "times as much",
            "samples": "the paper leaves open whether its 100 samples are positions or problems",
            "paper_mse": RECONSTRUCTION_ERROR[self.kind],
            "states": {state.name: state for state in self.states},
        }
        if (other := self.beside) is not None:
            origin = other.context.sample.origin
            values["beside"] = [{"model": other.context.model, "origin": origin, **other.values()}]
        return values

    def plot(self) -> "dict[str, figures.Figure]":
        panels = [
            ChartPanel(
                title=figures.broken(
                    f"{result.context.model['name']}, {state.name} of layer {result.layer}", 2.2
                ),
                rows=[f"head {head}" for head in range(len(state.readings[0].r2))],
                marks=_marks(state),
            )
            for result in self.models
            for state in result.states
        ]
        captions = " | ".join(result.context.caption for result in self.models)
        drawn = chart(
            panels,
            row=0.16,
            title="Reconstruction of a hidden state from one head",
            axis="R² of the reconstruction",
            caption="Held out: with 95% intervals over questions, and the range of random value "
            f"maps. Hollow: random vectors, fitted to the same samples. {captions}",
        )
        return {"information": drawn}


def _marks(state: StateInformation) -> list[Marks]:
    """Return the R2 of each head by each protocol, with its controls."""
    n = len(state.readings[0].r2)
    marks = []
    if (held_out := state.held_out) is not None:
        intervals = held_out.r2_intervals or ()
        marks = [
            Marks("held out", look("o", "blue"), held_out.r2.tolist(), intervals),
            Marks("held out, random maps", BAND, [], [held_out.random_map_range] * n),
            Marks("held out, optimum (PCA)", look("|", "blue", size=6), [held_out.optimum_r2] * n),
        ]
    for scores, colour in zip(state.readings, ("orange", "pink"), strict=True):
        name, hollow = f"{scores.n} {scores.reading}", look("D", colour, is_hollow=True, size=2)
        marks += [
            Marks(name, look("D", colour, size=2), scores.r2.tolist()),
            Marks(f"{name}, optimum (PCA)", look("|", colour, size=6), [scores.optimum_r2] * n),
            Marks(f"{name}, random vectors", hollow, [scores.control_r2] * n),
        ]
    return marks


def analyse(
    model: Transformer, sample: Sample, options: InformationOptions, seed: int
) -> InformationResult:
    """Reconstruct an encoder layer's input and output, for one model or for two side by side."""
    if options.against is None:
        return _analyse(model, sample, options, seed)
    device = next(model.parameters()).device
    other = checked_model(load(options.against).float().to(device), options)
    described = describe(other, options.against)
    beside = _analyse(other, sample, options, seed)
    beside = replace(beside, context=replace(beside.context, model=described))
    return replace(_analyse(model, sample, options, seed), beside=beside)


def _analyse(
    model: Transformer, sample: Sample, options: InformationOptions, seed: int
) -> InformationResult:
    n_paper, layer = options.samples, layer_index(options.layer, model.config.n_layers)
    before = f"encoder.{layer - 1}.output" if layer else "embedding"
    after, value = f"encoder.{layer}.output", f"encoder.{layer}.self_attention.value"
    recording = record(model, sample, [before, after, value])
    entering = _entering(model, layer, recording.flat(before))
    values = recording.flat(value).astype(np.float64)  # (position, head, d_head)
    questions = np.repeat(np.arange(len(sample)), [len(piece) for piece in recording[before]])
    states = []
    for name, state in (("input", entering), ("output", recording.flat(after).astype(np.float64))):
        if not state.var(axis=0).sum() > 0:
            raise UserError(f"the {name} of encoder layer {layer} is the same at all positions")
        rng = np.random.default_rng(seed)
        states.append(
            StateInformation(
                name=name,
                readings=(
                    in_sample(values, state, Draws.of_positions(questions, n_paper, rng)),
                    in_sample(values, state, Draws.of_problems(questions, n_paper, rng)),
                ),
                held_out=held_out(values, state, entering, questions, rng),
            )
        )
    return InformationResult(
        context=Context.of(model, sample, seed),
        kind="tp-transformer" if model.config.d_role else "transformer",
        layer=layer,
        d_model=entering.shape[1],
        d_head=values.shape[2],
        states=(states[0], states[1]),
    )


def _entering(model: Transformer, layer: int, state: Activations) -> Floats:
    """Return the input of the value map of a layer: the normalised state (section 2)."""
    cell = cast(EncoderCell, model.encoder[layer])
    with torch.no_grad():
        states = torch.from_numpy(state).to(next(model.parameters()))
        return cell.self_attention_norm(states).double().cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Many draws, without replacement, of the paper's n samples from the available questions.

    Draws from the same questions differ less than draws from all questions would. The difference is
    estimated by resampling questions; see `of_positions` and `of_problems`. `widening` is the
    variance between the mean of these draws and an independent draw, divided by their variance.
    """

    reading: str  # the meaning of a sample, POSITIONS or PROBLEMS
    n: int  # number of samples in a draw
    positions: list[Integers]  # of each draw; a single draw if there are too few samples for many
    widening: float
    rng: np.random.Generator  # source of the random features of the control

    @classmethod
    def of_positions(cls, questions: Integers, n: int, rng: np.random.Generator) -> "Draws":
        """Draw n positions, each time from another half of the questions.

        The mean over half of the questions varies around the mean over all of them as that varies
        around the true mean (McCarthy's half-samples), which accounts for the correlation between
        positions of a question. Drawing n of P positions without replacement has a factor 1/n - 1/P
        in the variance; an independent draw has 1/n + 1/P.
        """
        lengths = np.bincount(questions)
        half = len(lengths) // 2
        if np.sort(lengths)[:half].sum() < n:
            chosen, widening = [np.sort(rng.permutation(len(questions))[:n])], 1.0
        else:
            halves = (rng.permutation(len(lengths))[:half] for _ in range(SAMPLE_DRAWS))
            chosen = [
                np.sort(rng.permutation(np.flatnonzero(np.isin(questions, some)))[:n])
                for some in halves
            ]
            widening = (len(questions) + n) / (len(questions) - n)
        return cls(
            reading=POSITIONS, n=len(chosen[0]), positions=chosen, widening=widening, rng=rng
        )

    @classmethod
    def of_problems(cls, questions: Integers, n: int, rng: np.random.Generator) -> "Draws":
        """Draw n questions with all their positions, given the question of each position.

        The variance of such draws has a factor 1/n - 1/N; independent draws have 1/n, and the mean
        over the N questions 1/N (the delete-d jackknife of Shao and Wu, 1989).
        """
        n_questions = int(questions.max()) + 1
        if n_questions <= n:
            chosen, widening = [np.arange(n_questions)], 1.0
        else:
            chosen = [rng.permutation(n_questions)[:n] for _ in range(SAMPLE_DRAWS)]
            widening = (n_questions + n) / (n_questions - n)
        positions = [np.flatnonzero(np.isin(questions, some)) for some in chosen]
        return cls(
            reading=PROBLEMS, n=len(chosen[0]), positions=positions, widening=widening, rng=rng
        )

    def interval(self, statistic: Floats) -> Interval | None:
        """Return the interval that is expected to hold a statistic in 95% of independent draws.

        The statistic is given for each draw; with a single draw the result is None.
        """
        if len(statistic) < 2:
            return None
        deviation = math.sqrt(self.widening * statistic.var(ddof=1))
        reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation
        mean = float(statistic.mean())
        return max(0.0, mean - reach), mean + reach


def in_sample(values: Floats, states: Floats, draws: Draws) -> InSample:
    """Fit and score on the same positions, draw by draw.

    The values are (position, head, d_head), the states (position, d_model).
    """
    d_head = values.shape[2]
    variance = np.array([states[rows].var(axis=0).mean() for rows in draws.positions])
    mse = np.array(  # (draw, head)
        [
            [_fitted_error(head, states[rows]) for head in values[rows].swapaxes(0, 1)]
            for rows in track(f"reconstructing from draws of {draws.reading}", draws.positions)
        ]
    )
    optimum, control = [], []
    for number in range(CONTROL_DRAWS):
        draw = number % len(draws.positions)
        drawn = states[draws.positions[draw]]
        features = draws.rng.standard_normal((len(drawn), d_head))
        control.append(1 - _fitted_error(features, drawn) / variance[draw])
        if number == draw:
            left = np.square(drawn - project(drawn, d_head, drawn)).mean()
            optimum.append(1 - left / variance[draw])
    n_positions = float(np.mean([len(rows) for rows in draws.positions]))
    return InSample(
        reading=draws.reading,
        n=draws.n,
        n_draws=len(draws.positions),
        n_positions=n_positions,
        mse=mse.mean(axis=0),
        mse_interval=draws.interval(mse.mean(axis=1)),
        r2=(1 - mse / variance[:, None]).mean(axis=0),
        optimum_r2=float(np.mean(optimum)),
        control_r2=float(np.mean(control)),
        expected_r2=min(1.0, d_head / (n_positions - 1)),
    )


def _fitted_error(features: Floats, states: Floats) -> float:
    return float(np.square(states - predict(features, states, features)).mean())


def predict(features: Floats, states: Floats, others: Floats) -> Floats:
    """Predict states from other features by the affine map of least squares."""
    feature_mean, state_mean = features.mean(axis=0), states.mean(axis=0)
    centred = features - feature_mean
    # For many heads and folds: the normal equations take a fifth of the time of numpy's lstsq.
    inverse = np.linalg.pinv(centred.T @ centred, rcond=1e-12, hermitian=True)
    weight = inverse @ (centred.T @ (states - state_mean))
    return state_mean + (others - feature_mean) @ weight


def project(states: Floats, size: int, others: Floats) -> Floats:
    """Project other states on the first `size` principal components of these states.

    No affine map from `size` numbers is closer to these states themselves.
    """
    mean = states.mean(axis=0)
    _, directions = np.linalg.eigh((states - mean).T @ (states - mean))
    kept = directions[:, -size:]
    return mean + (others - mean) @ kept @ kept.T


def held_out(
    values: Floats, states: Floats, entering: Floats, questions: Integers, rng: np.random.Generator
) -> HeldOut | None:
    """Fit on some questions and score the others, so that each question is scored once.

    Args:
        values: (position, head, d_head)
        states: the states to reconstruct, (position, d_model)
        entering: the input of the value map, (position, d_model)
        questions: the index of the question of each position
        rng: source of the folds and the random value maps

    Returns:
        None if there is only one question.
    """
    n_questions, n_heads, d_head = int(questions.max()) + 1, *values.shape[1:]
    if n_questions < 2:
        return None
    maps = rng.standard_normal((MAP_DRAWS, entering.shape[1], d_head))
    features = [*values.swapaxes(0, 1), *(entering @ random_map for random_map in maps)]
    fold = rng.permutation(n_questions) % FOLDS
    errors = np.zeros((n_questions, len(features) + 2))  # squared, (question, predictor)
    for number in track("reconstructing held-out questions", np.unique(fold)):
        out = fold[questions] == number
        predicted = [predict(feature[~out], states[~out], feature[out]) for feature in features]
        predicted.append(project(states[~out], d_head, states[out]))
        predicted.append(np.broadcast_to(states[~out].mean(axis=0), states[out].shape))
        for column, guess in enumerate(predicted):
            np.add.at(errors[:, column], questions[out], np.square(states[out] - guess).sum(axis=1))
    r2 = _explained(errors, np.ones((1, n_questions), np.int64))[0]
    mse = errors.sum(axis=0) / states.size
    intervals = [_interval(errors, slice(head, head + 1)) for head in range(n_heads)]
    known = tuple(interval for interval in intervals if interval is not None)
    of_maps = r2[n_heads:-2]
    return HeldOut(
        n_positions=len(states),
        mse=mse[:n_heads],
        r2=r2[:n_heads],
        r2_intervals=known or None,  # all heads have an interval, or none has
        average_interval=_interval(errors, slice(0, n_heads)),
        optimum_mse=float(mse[-2]),
        optimum_r2=float(r2[-2]),
        random_map_r2=float(of_maps.mean()),
        random_map_range=(float(of_maps.min()), float(of_maps.max())),
        mean_mse=float(mse[-1]),
    )


def _explained(errors: Floats, counts: Integers) -> Floats:
    """Return the R2 of each predictor, (resample, predictor); the last one predicts the mean."""
    total = counts @ errors
    return 1 - total / total[:, -1:]


def _interval(errors: Floats, columns: slice) -> Interval | None:
    """Return an interval of the mean R2 of some predictors, over resampled questions."""
    return resample(len(errors), lambda counts: _explained(errors, counts)[:, columns].mean(axis=1))
