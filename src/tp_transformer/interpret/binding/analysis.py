"""Structures that attention confuses: the binding problem (section 6.2).

In the simplified network of that section (`simplified`), two structures are the same for standard
attention and different for TP-attention.

The same question is put to a whole model, which also has several heads, feed-forward layers and
positions to tell structures apart. It reads (a/b)/(c/d), and the same with two of the four numbers
exchanged. The simplified network with standard attention confuses two of the six exchanges, a with
c and b with d; both change the value. The control are two exchanges that it does not confuse, a
with d and b with c: they keep the value, and their numbers are on average as far apart, 6 tokens.
(The last two, a with b and c with d, exchange neighbours, which moves the states less even in an
untrained model.) In a model with the binding problem, confusable exchanges move the state at the
outer operator less than the control does, a ratio below that of untrained models, which is about 1;
and the answer stays the same. In a model that represents the value, the ratio is higher. Either is
stated only if the interval of the ratio excludes 1 and the expected range of untrained models.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from tp_transformer.foundation.progress import track
from tp_transformer.foundation.statistics import resample, wilson
from tp_transformer.interpret.binding.options import BindingOptions
from tp_transformer.interpret.binding.result import (
    CONFUSABLE,
    CONTROL,
    INITIAL_DRAWS,
    BindingResult,
    NumberExchange,
    Ratio,
)
from tp_transformer.interpret.binding.simplified import simplified
from tp_transformer.interpret.core.arrays import Booleans, Floats
from tp_transformer.interpret.core.nested import (
    LETTERS,
    NestedFraction,
    nested_sample,
    read_fractions,
)
from tp_transformer.interpret.core.options import layer_index
from tp_transformer.interpret.core.record import checked_model, record, untrained
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

ROUNDING = 1e-5  # relative distances of states below this are rounding errors of float32


def analyse(model: AnyModel, sample: Sample, options: BindingOptions, seed: int) -> BindingResult:
    """Measure simplified networks, and exchange the numbers of nested fractions for a model."""
    model = checked_model(model, options)
    layer = layer_index(options.layer, model.config.n_layers)
    asked = read_fractions(sample)
    pairs = ["".join(letters) for letters in combinations(LETTERS, 2)]
    variants = {pair: [fraction.exchanged(pair) for fraction in asked] for pair in pairs}
    distances = _all_distances(model, layer, asked, variants)
    answers = model.solve(sample.questions)
    exchanges = [
        _exchange(
            pair,
            distances[pair],
            asked,
            after,
            answers,
            model.solve([fraction.question for fraction in after]),
        )
        for pair, after in track("asking with numbers exchanged", variants.items())
    ]
    initial = (
        _ratio(_all_distances(untrained(model, seed + draw), layer, asked, variants))
        for draw in track("measuring untrained models", range(INITIAL_DRAWS))
    )
    return BindingResult(
        context=Context.of(model, sample, seed),
        layer=layer,
        simplified=simplified(draws=options.draws, seed=seed),
        exchanges=tuple(exchanges),
        ratio=_ratio(distances),
        initial_ratios=tuple(ratio.value for ratio in initial if ratio is not None),
    )


def _all_distances(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
) -> dict[str, Floats]:
    """Return how far each exchange moves the states: (question, at the operator and elsewhere)."""
    before = _states(model, layer, asked)
    return {
        pair: np.array(
            [
                _distances(*states)
                for states in zip(asked, before, _states(model, layer, after), strict=True)
            ]
        )
        for pair, after in variants.items()
    }


def _states(model: Transformer, layer: int, asked: Sequence[NestedFraction]) -> list[Floats]:
    """Return the output of the layer for each question: (position, d_model)."""
    sample = nested_sample(asked, "nested fractions")
    name = f"encoder.{layer}.output"
    return [piece.astype(np.float64) for piece in record(model, sample, [name])[name]]


def _distances(asked: NestedFraction, before: Floats, after: Floats) -> tuple[float, float]:
    """Return the relative distance of the states, at the operator and on average elsewhere."""
    length = (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)) / 2
    moved = np.linalg.norm(before - after, axis=1) / length
    is_number = [False, *(character.isdigit() for character in asked.question), False]
    return float(moved[asked.operator]), float(moved[~np.array(is_number)].mean())


def _exchange(
    letters: str,
    distances: Floats,
    before: Sequence[NestedFraction],
    after: Sequence[NestedFraction],
    answers_before: Sequence[str],
    answers_after: Sequence[str],
) -> NumberExchange:
    answered = _is_right(before, answers_before)
    right = _is_right(after, answers_after)
    same = np.array(answers_before) == np.array(answers_after)
    n_answered, n_same = int(answered.sum()), int((same & answered).sum())
    at_operator = distances[:, 0]
    return NumberExchange(
        letters=letters,
        at_operator=float(at_operator.mean()),
        at_operator_interval=resample(
            len(distances), lambda counts: counts @ at_operator / len(distances)
        ),
        elsewhere=float(distances[:, 1].mean()),
        n_answered=n_answered,
        n_right=int((right & answered).sum()),
        n_same=n_same,
        same_interval=wilson(n_same, n_answered) if n_answered else None,
    )


def _is_right(asked: Sequence[NestedFraction], answers: Sequence[str]) -> Booleans:
    return np.array([fraction.answer for fraction in asked]) == np.array(answers)


def _ratio(distances: Mapping[str, Floats]) -> Ratio | None:
    """Return the ratio of the distances at the operator, confusable exchanges to control."""
    own, control = (
        np.mean([distances[two][:, 0] for two in letters], axis=0)
        for letters in (CONFUSABLE, CONTROL)
    )
    if control.mean() < ROUNDING:
        return None
    interval = resample(len(own), lambda counts: (counts @ own) / (counts @ control))
    return Ratio(value=float(own.mean() / control.mean()), interval=interval)
