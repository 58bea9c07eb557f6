"""What one head's value vector tells of the state it was made from (section 6.1).

The paper reconstructs the hidden state of the encoder's last layer from the value vector of each
head by an affine map, on 100 samples, and takes the small error as a sign that a head "captures
nearly the full information content". Two states may be meant, and both are analysed: the one that
enters the value map, and the one that the layer hands on.

Two protocols stand side by side:

- The paper's: fitted and scored on the same n positions. It can show that information is missing,
  if even this error is large. It cannot show that information is there: vectors that know nothing
  of the states already explain a share of d_head / (n - 1) of their variance, and positions of one
  question resemble each other.
- Held-out: fitted on some questions, scored on others, over all positions, beside the best that any
  d_head numbers could do (principal components) and beside value maps drawn at random. Where states
  lie in few dimensions, any map keeps nearly everything, and that is no merit of the head.

The paper's formula leaves open whether the error is averaged or summed over the dimensions; here it
is averaged ("mean squared error"), and the sum is d_model times as much. R2 is the share of the
states' total variance that is explained, all dimensions together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch

from tp_transformer import figures
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret import outcome
from tp_transformer.interpret.outcome import Context, Values
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
from tp_transformer.published import RECONSTRUCTION_ERROR
from tp_transformer.scoring.statistics import FEWEST, Interval, resample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

FOLDS = 5
CONTROL_DRAWS = 20  # of random features, for the paper's protocol
MAP_DRAWS = 5  # of random value maps


@dataclass(frozen=True, kw_only=True)
class InSample:
    """The paper's protocol: fitted and scored on the same positions.

    Attributes:
        n: positions
        mse: of each head, mean over positions and dimensions
        r2: of each head
        optimum_r2: of the best d_head numbers, the principal components of these positions
        control_r2: of random features of the same size, measured
        expected_r2: of random features of the same size, in theory: d_head / (n - 1)
    """

    n: int
    mse: Floats  # (head)
    r2: Floats  # (head)
    optimum_r2: float
    control_r2: float
    expected_r2: float


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
    in_sample: InSample
    held_out: HeldOut | None

    def to_values(self) -> Values:
        """The numbers as JSON has them, with averages over heads."""
        ours, sound = self.in_sample, self.held_out
        values: Values = {
            "paper_protocol": {
                **vars(ours),
                "average_mse": ours.mse.mean(),
                "average_r2": ours.r2.mean(),
            },
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

    @property
    def meaning(self) -> list[str]:
        """What the numbers say, and what they cannot."""
        return [line for state in self.states for line in self._meaning_of(state)]

    def _meaning_of(self, state: StateInformation) -> list[str]:
        ours, sound = state.in_sample, state.held_out
        lines = [
            f"The {state.name} of encoder layer {self.layer}, by the paper's protocol: "
            f"mean squared error {ours.mse.mean():.3f}, R2 {ours.r2.mean():.3f}, averaged over "
            f"heads (the paper's error: {RECONSTRUCTION_ERROR[self.kind]}). It fits "
            f"{self.d_head + 1} numbers per dimension to the {ours.n} positions that it scores, "
            f"so random vectors reach an R2 of {ours.control_r2:.3f} "
            f"(expected: {ours.expected_r2:.3f}) and the best {self.d_head} numbers "
            f"{ours.optimum_r2:.3f}, and positions of one question resemble each "
            "other: it can show that information is missing, not that it is there."
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

    def to_values(self) -> Values:
        """The numbers as JSON has them."""
        return {
            "layer": self.layer,
            "d_model": self.d_model,
            "d_head": self.d_head,
            "error": "mean over positions and dimensions; summed over dimensions it is d_model "
            "times as much",
            "paper_mse": RECONSTRUCTION_ERROR[self.kind],
            "states": {state.name: state.to_values() for state in self.states},
            "meaning": self.meaning,
        }


def _in_words(interval: Interval | None) -> str:
    if interval is None:
        return f"no interval: fewer than {FEWEST} questions"
    return f"95% {interval[0]:.3f} to {interval[1]:.3f}"


def analyse(
    model: AnyModel, sample: Sample, *, layer: int = -1, seed: int = 0, n_paper: int = 100
) -> Information:
    """Reconstruct an encoder layer's input and output from the value vector of each head."""
    model = transformer_of(model)
    if n_paper < 3:
        raise SettingsError(f"the paper's protocol needs at least 3 positions, not {n_paper}")
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
        chosen = np.sort(rng.permutation(len(state))[:n_paper])
        states.append(
            StateInformation(
                name=name,
                in_sample=in_sample(values[chosen], state[chosen], rng),
                held_out=held_out(values, state, entering, questions, rng),
            )
        )
    return Information(
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


def in_sample(values: Floats, states: Floats, rng: np.random.Generator) -> InSample:
    """Fit and score on the same positions.

    The values are (position, head, d_head), the states (position, d_model).
    """
    n, _, d_head = values.shape
    variance = float(states.var(axis=0).mean())
    mse = np.array([_fitted_error(own, states) for own in values.swapaxes(0, 1)])
    controls = [
        _fitted_error(rng.standard_normal((n, d_head)), states) for _ in range(CONTROL_DRAWS)
    ]
    left = np.square(states - project(states, d_head, states)).mean()
    return InSample(
        n=n,
        mse=mse,
        r2=1 - mse / variance,
        optimum_r2=float(1 - left / variance),
        control_r2=float(1 - np.mean(controls) / variance),
        expected_r2=min(1.0, d_head / (n - 1)),
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
    return [path, *_save_figure([(result, context), *beside], Path(folder))]


_TITLES = {"input": "state that the values are made of", "output": "state that the layer hands on"}


def _save_figure(shown: Sequence[tuple[Information, Context]], folder: Path) -> list[Path]:
    with figures.blank(3.5 * max(len(shown), 2), 5.0) as drawn:
        # One model has its two states side by side, several have a column each.
        shape = (1, 2) if len(shown) == 1 else (2, len(shown))
        if len(shown) == 1:
            drawn.set_figheight(2.9)
        axes = drawn.subplots(*shape, sharey=True, squeeze=False).T.reshape(-1)
        panels = [(one, context, state) for one, context in shown for state in one.states]
        for place, (one, context, state) in zip(axes, panels, strict=True):
            _draw(place, state)
            name = f"{context.model['name']}, " if len(shown) > 1 else ""
            place.set_title(f"{name}layer {one.layer}:\n{_TITLES[state.name]}", fontsize=8)
            place.set_xlabel(f"head\n{_errors(one, state)}", fontsize=7)
        for place in drawn.axes:
            if place.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                place.set_ylabel("R² of the reconstruction")
        handles, labels = axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=7)
        figures.caption(drawn, " | ".join(context.caption for _, context in shown))
        return figures.save(drawn, folder, "information")


def _errors(found: Information, state: StateInformation) -> str:
    """The errors beside the paper's, which the R2 of the panel does not show."""
    ours, sound = state.in_sample, state.held_out
    held = "" if sound is None else f", {sound.mse.mean():.3f} held out"
    paper = RECONSTRUCTION_ERROR[found.kind]
    return f"MSE {ours.mse.mean():.3f} in sample (the paper's: {paper}){held}"


def _draw(axes: "Axes", state: StateInformation) -> None:
    """A bar for each head, with the lines that it has to be compared with.

    What is in sample is orange: its optimum and its random vectors are others than those held out.
    """
    blue, orange, green, *_ = figures.COLOURS
    ours, sound = state.in_sample, state.held_out
    heads = np.arange(len(ours.r2))
    if sound is not None:
        limits = sound.r2_intervals
        reach = None if limits is None else np.abs(np.array(limits).T - sound.r2)
        ends = {"elinewidth": 0.8, "ecolor": "#303030"}
        axes.bar(heads, sound.r2, 0.6, yerr=reach, color=blue, error_kw=ends, label="held out")
    axes.plot(heads, ours.r2, "D", color=orange, markersize=4, label=f"in sample, n = {ours.n}")
    if sound is not None:
        axes.axhline(sound.optimum_r2, color=blue, linewidth=1.2, label="held out, optimum (PCA)")
        axes.axhspan(*sound.random_map_range, color=green, alpha=0.2, linewidth=0)
        axes.axhline(
            sound.random_map_r2,
            color=green,
            linewidth=1.2,
            linestyle="--",
            label="held out, random maps (range)",
        )
    axes.axhline(ours.optimum_r2, color=orange, linewidth=1.2, label="in sample, optimum (PCA)")
    axes.axhline(
        ours.control_r2,
        color=orange,
        linewidth=1.2,
        linestyle=":",
        label="in sample, random vectors",
    )
    axes.set_xticks(heads)
    axes.set_ylim(top=1.04)
    axes.grid(axis="x", visible=False)
