"""What one head's value vector tells of the state it was made from (section 6.1).

The paper reconstructs the hidden state of the encoder's last layer from the value vector of each
head by an affine map, on 100 samples, and takes the small error as a sign that a head "captures
nearly the full information content". Two states may be meant, and both are analysed: the one that
enters the value map, and the one that the layer hands on.

Two protocols stand side by side:

- The paper's: fitted and scored on the same positions. It can show that information is missing, if
  even this error is large. It cannot show that information is there: vectors that know nothing of
  the states already explain a share of d_head / (positions - 1) of their variance, and positions of
  one question resemble each other. The paper has "n = 100 samples" and leaves open of what: the
  sum of its equation has a position t and a factor 1/n, while elsewhere its samples are problems.
  Both readings are measured, over many draws, because a single draw of 100 positions differs from
  the next by several percent.
- Held-out: fitted on some questions, scored on others, over all positions, beside the best that any
  d_head numbers could do (principal components) and beside value maps drawn at random. Where states
  lie in few dimensions, any map keeps nearly everything, and that is no merit of the head.

The paper's formula leaves open whether the error is averaged or summed over the dimensions; here it
is averaged ("mean squared error"), and the sum is d_model times as much. R2 is the share of the
states' total variance that is explained, all dimensions together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret import information_figure, outcome
from tp_transformer.interpret.information_result import (
    MAP_DRAWS,
    POSITIONS,
    PROBLEMS,
    Floats,
    HeldOut,
    Information,
    InSample,
    StateInformation,
)
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import (
    Recording,
    Sample,
    chosen_layer,
    record,
    transformer_of,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.model.layers import EncoderCell
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import CONFIDENCE, Interval, resample

Ids = npt.NDArray[np.int64]

FOLDS = 5
SAMPLE_DRAWS = 100  # of the paper's n samples
CONTROL_DRAWS = 20  # of random features, for the paper's protocol


def analyse(
    model: AnyModel, sample: Sample, *, layer: int = -1, seed: int = 0, n_paper: int = 100
) -> Information:
    """Reconstruct an encoder layer's input and output from the value vector of each head."""
    model = transformer_of(model)
    if n_paper < 3:
        raise SettingsError(f"the paper's protocol needs at least 3 samples, not {n_paper}")
    layer = chosen_layer(model, layer)
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
    return Information(
        seed=seed,
        kind="transformer" if model.config.binding == "none" else "tp-transformer",
        layer=layer,
        d_model=entering.shape[1],
        d_head=values.shape[2],
        states=(states[0], states[1]),
    )


def _entering(model: Transformer, layer: int, found: Recording, before: str) -> Floats:
    """What the value map of a layer reads: the state before it, normalised (section 2)."""
    cell = cast(EncoderCell, model.encoder[layer])
    parameter = next(model.parameters())
    with torch.no_grad():
        state = torch.from_numpy(found.flat(before)).to(parameter)
        return cell.self_attention_norm(state).double().cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The paper's n samples, drawn many times without replacement from the questions there are.

    Draws from the same questions differ less than draws from all questions would. What is missing
    is estimated by resampling questions, see `of_positions` and `of_problems`.

    Attributes:
        reading: what a sample is, POSITIONS or PROBLEMS
        n: samples in a draw
        positions: of each draw; a single draw where there are too few samples for many
        widening: the variance between the mean of these draws and an independent draw, divided by
            the variance of these draws
        rng: draws the random features that each draw is compared with
    """

    reading: str
    n: int
    positions: list[Ids]
    widening: float
    rng: np.random.Generator

    @classmethod
    def of_positions(cls, questions: Ids, n: int, rng: np.random.Generator) -> "Draws":
        """Draw n positions, each time from another half of the questions.

        The mean over half of the questions varies about the mean over all of them as that does
        about the truth (McCarthy's half-samples): what positions of a question have in common is
        so accounted for. Positions also run out: their P have a factor 1/n - 1/P in the variance,
        not 1/n + 1/P.
        """
        lengths = np.bincount(questions)
        half = len(lengths) // 2
        if np.sort(lengths)[:half].sum() < n:
            chosen, widening = [np.sort(rng.permutation(len(questions))[:n])], 1.0
        else:
            halves = (rng.permutation(len(lengths))[:half] for _ in range(SAMPLE_DRAWS))
            chosen = [
                np.sort(rng.permutation(np.flatnonzero(np.isin(questions, one)))[:n])
                for one in halves
            ]
            widening = (len(questions) + n) / (len(questions) - n)
        return cls(
            reading=POSITIONS, n=len(chosen[0]), positions=chosen, widening=widening, rng=rng
        )

    @classmethod
    def of_problems(cls, questions: Ids, n: int, rng: np.random.Generator) -> "Draws":
        """Draw n questions with all their positions, given the question of each position.

        The variance of such draws has a factor 1/n - 1/N, where independent draws have 1/n and the
        mean over the N questions 1/N (the delete-d jackknife of Shao and Wu, 1989).
        """
        n_questions = int(questions.max()) + 1
        if n_questions <= n:
            chosen, widening = [np.arange(n_questions)], 1.0
        else:
            chosen = [rng.permutation(n_questions)[:n] for _ in range(SAMPLE_DRAWS)]
            widening = (n_questions + n) / (n_questions - n)
        positions = [np.flatnonzero(np.isin(questions, one)) for one in chosen]
        return cls(
            reading=PROBLEMS, n=len(chosen[0]), positions=positions, widening=widening, rng=rng
        )

    def interval(self, statistic: Floats) -> Interval | None:
        """Where a statistic, given for each draw, is expected to lie in 95% of independent draws.

        None where there is only one draw.
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
            [_fitted_error(one, states[own]) for one in values[own].swapaxes(0, 1)]
            for own in draws.positions
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
    """The states of other features, by the affine map of least squares in closed form."""
    feature_mean, state_mean = features.mean(axis=0), states.mean(axis=0)
    centred = features - feature_mean
    # Many heads and folds: the normal equations take a fifth of the time of numpy's lstsq.
    inverse = np.linalg.pinv(centred.T @ centred, rcond=1e-12, hermitian=True)
    weight = inverse @ (centred.T @ (states - state_mean))
    return state_mean + (others - feature_mean) @ weight


def project(states: Floats, size: int, others: Floats) -> Floats:
    """Other states from `size` numbers each, by the principal components of these states.

    No affine map from any `size` numbers comes closer to the states themselves.
    """
    mean = states.mean(axis=0)
    _, directions = np.linalg.eigh((states - mean).T @ (states - mean))
    kept = directions[:, -size:]
    return mean + (others - mean) @ kept @ kept.T


def held_out(
    values: Floats, states: Floats, entering: Floats, questions: Ids, rng: np.random.Generator
) -> HeldOut | None:
    """Fit on some questions and score the others, so that each is scored once.

    Args:
        values: (position, head, d_head)
        states: (position, d_model), which are reconstructed
        entering: (position, d_model), which the value map reads
        questions: the question of each position, from 0
        rng: draws the folds and the random value maps

    Returns:
        None if there is only one question.
    """
    n_questions, n_heads, d_head = int(questions.max()) + 1, *values.shape[1:]
    if n_questions < 2:
        return None
    maps = rng.standard_normal((MAP_DRAWS, entering.shape[1], d_head))
    features = [*values.swapaxes(0, 1), *(entering @ one for one in maps)]
    fold = rng.permutation(n_questions) % FOLDS
    errors = np.zeros((n_questions, len(features) + 2))  # squares summed, by question and predictor
    for number in np.unique(fold):
        out = fold[questions] == number
        predicted = [predict(one[~out], states[~out], one[out]) for one in features]
        predicted.append(project(states[~out], d_head, states[out]))
        predicted.append(np.broadcast_to(states[~out].mean(axis=0), states[out].shape))
        for column, one in enumerate(predicted):
            np.add.at(errors[:, column], questions[out], np.square(states[out] - one).sum(axis=1))
    r2 = _explained(errors, np.ones((1, n_questions), np.int64))[0]
    mse = errors.sum(axis=0) / states.size
    intervals = [_interval(errors, slice(head, head + 1)) for head in range(n_heads)]
    known = tuple(one for one in intervals if one is not None)
    of_maps = r2[n_heads:-2]
    return HeldOut(
        n_positions=len(states),
        mse=mse[:n_heads],
        r2=r2[:n_heads],
        r2_intervals=known or None,  # there are enough questions for all heads or for none
        average_interval=_interval(errors, slice(0, n_heads)),
        optimum_mse=float(mse[-2]),
        optimum_r2=float(r2[-2]),
        random_map_r2=float(of_maps.mean()),
        random_map_range=(float(of_maps.min()), float(of_maps.max())),
        mean_mse=float(mse[-1]),
    )


def _explained(errors: Floats, counts: Ids) -> Floats:
    """R2 of each predictor, (resample, predictor); the last one predicts the mean."""
    total = counts @ errors
    return 1 - total / total[:, -1:]


def _interval(errors: Floats, columns: slice) -> Interval | None:
    """For the R2 of some predictors, averaged, by drawing questions anew."""
    return resample(len(errors), lambda counts: _explained(errors, counts)[:, columns].mean(axis=1))


def save(
    result: Information,
    context: Context,
    folder: str | Path,
    beside: Sequence[tuple[Information, Context]] = (),
) -> list[Path]:
    """Write the numbers and draw the heads of one model, or of several beside each other."""
    values = result.to_values()
    if beside:
        values["beside"] = [
            {"model": other.model, "origin": other.sample.origin, **one.to_values()}
            for one, other in beside
        ]
    path = outcome.write(folder, "information", values, context)
    return [path, *information_figure.draw([(result, context), *beside], Path(folder))]
