"""How much of a hidden state the value vector of one head holds (section 6.1).

The paper reconstructs the hidden state of the encoder's last layer from the value vector of each
head by an affine map, on 100 samples, and takes the small error as a sign that a head "captures
nearly the full information content". Two states may be meant, and both are analysed: the input of
the value map, and the output of the layer.

There are two protocols:

- The paper's: fitted and scored on the same positions. A large error shows that information is
  missing. A small error does not show that it is there: random vectors already explain a share of
  d_head / (positions - 1) of the variance, and positions of one question resemble each other. The
  paper has "n = 100 samples" and leaves open of what: the sum of its equation has a position t and
  a factor 1/n, while elsewhere its samples are problems. Both readings are measured, over many
  draws, because single draws of 100 positions differ by several percent.
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

from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import CONFIDENCE, Interval, resample
from tp_transformer.interpret.core.arrays import Floats, Integers
from tp_transformer.interpret.core.options import layer_index
from tp_transformer.interpret.core.record import Recording, checked_model, record
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.information.options import InformationOptions
from tp_transformer.interpret.information.result import (
    MAP_DRAWS,
    POSITIONS,
    PROBLEMS,
    HeldOut,
    InformationResult,
    InSample,
    StateInformation,
)
from tp_transformer.model.family import AnyModel, load
from tp_transformer.model.identity import describe
from tp_transformer.model.layers import EncoderCell
from tp_transformer.model.transformer import Transformer

FOLDS = 5
SAMPLE_DRAWS = 100  # draws of the paper's n samples
CONTROL_DRAWS = 20  # draws of random features, for the paper's protocol


def analyse(
    model: AnyModel, sample: Sample, options: InformationOptions, seed: int
) -> InformationResult:
    """Reconstruct an encoder layer's input and output, for one model or for two side by side."""
    model = checked_model(model, options)
    if options.against is None:
        return _analyse(model, sample, options, seed)
    other = checked_model(
        load(options.against).float().to(next(model.parameters()).device), options
    )
    described = describe(other, options.against)
    found = _analyse(other, sample, options, seed)
    beside = replace(found, context=replace(found.context, model=described))
    return replace(_analyse(model, sample, options, seed), beside=beside)


def _analyse(
    model: Transformer, sample: Sample, options: InformationOptions, seed: int
) -> InformationResult:
    n_paper, layer = options.samples, layer_index(options.layer, model.config.n_layers)
    before = f"encoder.{layer - 1}.output" if layer else "embedding"
    names = [before, f"encoder.{layer}.output", f"encoder.{layer}.self_attention.value"]
    found = record(model, sample, names)
    entering = _entering(model, layer, found, before)
    values = found.flat(names[2]).astype(np.float64)  # (position, head, d_head)
    questions = np.repeat(np.arange(len(sample)), [len(piece) for piece in found[before]])
    states = []
    for name, state in (("input", entering), ("output", found.flat(names[1]).astype(np.float64))):
        if not state.var(axis=0).sum() > 0:
            raise UserError(f"the {name} of encoder layer {layer} is the same at all positions")
        rng = np.random.default_rng(seed)
        states.append(
            StateInformation(
                name=name,
                by_positions=in_sample(values, state, Draws.of_positions(questions, n_paper, rng)),
                by_problems=in_sample(values, state, Draws.of_problems(questions, n_paper, rng)),
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


def _entering(model: Transformer, layer: int, found: Recording, before: str) -> Floats:
    """Return the input of the value map of a layer: the normalised state (section 2)."""
    cell = cast(EncoderCell, model.encoder[layer])
    parameter = next(model.parameters())
    with torch.no_grad():
        state = torch.from_numpy(found.flat(before)).to(parameter)
        return cell.self_attention_norm(state).double().cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Many draws, without replacement, of the paper's n samples from the available questions.

    Draws from the same questions differ less than draws from all questions would. The difference is
    estimated by resampling questions; see `of_positions` and `of_problems`.

    Attributes:
        reading: the meaning of a sample, POSITIONS or PROBLEMS
        n: number of samples in a draw
        positions: the positions of each draw; a single draw if there are too few samples for many
        widening: the variance between the mean of these draws and an independent draw, divided by
            the variance of these draws
        rng: source of the random features of the control
    """

    reading: str
    n: int
    positions: list[Integers]
    widening: float
    rng: np.random.Generator

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
    variance = np.array([states[own].var(axis=0).mean() for own in draws.positions])
    mse = np.array(  # (draw, head)
        [
            [_fitted_error(head, states[own]) for head in values[own].swapaxes(0, 1)]
            for own in track(f"reconstructing from draws of {draws.reading}", draws.positions)
        ]
    )
    optimum, control = [], []
    for number in range(CONTROL_DRAWS):
        draw = number % len(draws.positions)
        own = states[draws.positions[draw]]
        features = draws.rng.standard_normal((len(own), d_head))
        control.append(1 - _fitted_error(features, own) / variance[draw])
        if number == draw:
            left = np.square(own - project(own, d_head, own)).mean()
            optimum.append(1 - left / variance[draw])
    n_positions = float(np.mean([len(own) for own in draws.positions]))
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
        predicted = [predict(own[~out], states[~out], own[out]) for own in features]
        predicted.append(project(states[~out], d_head, states[out]))
        predicted.append(np.broadcast_to(states[~out].mean(axis=0), states[out].shape))
        for column, own in enumerate(predicted):
            np.add.at(errors[:, column], questions[out], np.square(states[out] - own).sum(axis=1))
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
