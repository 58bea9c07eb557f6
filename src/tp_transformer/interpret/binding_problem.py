"""The binding problem made executable: which structures attention confuses (section 6.2).

First the simplified network of that section (see simplified.py): for standard attention the two
structures are the same, for TP-attention they are not.

Then the same question put to a whole model, which has more than one head, feed-forward layers and
positions to tell structures apart: it reads (a/b)/(c/d) and the same with two of its four numbers
exchanged. The simplified network with standard attention confuses two of the six exchanges, a with
c and b with d, and both change the value. The control are two exchanges that it does not confuse,
a with d and b with c: they keep the value, and their numbers stand on average as far from each
other, 6 symbols. (The last two, a with b and c with d, exchange neighbours, which moves the states
less even in a model that was not trained.) A model with the binding problem has states that are
nearer to each other after the confusable exchanges than after the control, a ratio below those of
initial weights, which are about 1; and it gives the same answer to both. A model that represents
the value has a ratio above them. Either is said only if the ratio's interval leaves out both 1 and
where 95% of further draws of initial weights are expected.

Last, not the numbers are exchanged but their roles (see interchange.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret import binding_problem_figure, interchange_figure, outcome
from tp_transformer.interpret.binding_problem_result import (
    CONFUSABLE,
    CONTROL,
    INITIAL_DRAWS,
    Binding,
    Exchange,
    Ratio,
)
from tp_transformer.interpret.interchange import interchanges
from tp_transformer.interpret.nested import (
    LETTERS,
    NestedFraction,
    nested_fractions,
    sample_of,
)
from tp_transformer.interpret.outcome import Context
from tp_transformer.interpret.record import chosen_layer, fresh, record, transformer_of
from tp_transformer.interpret.simplified import simplified
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.statistics import resample, wilson

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-5  # relative distances of states below this are float32's


def analyse(
    model: AnyModel, *, layer: int = -1, count: int = 64, draws: int = 50, seed: int = 0
) -> Binding:
    """Draw simplified networks, and exchange the numbers of nested fractions for a model."""
    model = transformer_of(model)
    layer = chosen_layer(model, layer)
    asked = nested_fractions(count, seed)
    letters = ["".join(two) for two in combinations(LETTERS, 2)]
    variants = {two: [one.exchanged(two) for one in asked] for two in letters}
    distances = _all_distances(model, layer, asked, variants)
    said = model.solve([one.question for one in asked])
    exchanges = [
        _exchange(
            two, distances[two], asked, after, said, model.solve([one.question for one in after])
        )
        for two, after in variants.items()
    ]
    return Binding(
        seed=seed,
        layer=layer,
        sample=sample_of(
            asked, f"{count} nested fraction{'s' * (count > 1)} of digits (seed {seed})"
        ),
        simplified=simplified(draws=draws, seed=seed),
        exchanges=tuple(exchanges),
        ratio=_ratio(distances),
        initial_ratios=_initial_ratios(model, layer, asked, variants, seed),
        interchanges=interchanges(model, asked, layer=layer, seed=seed),
    )


def _initial_ratios(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
    seed: int,
) -> tuple[float, ...]:
    """The ratios of models that have learned nothing: it is weights that make them differ."""
    drawn = (fresh(model, seed + number) for number in range(INITIAL_DRAWS))
    ratios = (_ratio(_all_distances(one, layer, asked, variants)) for one in drawn)
    return tuple(one.value for one in ratios if one is not None)


def _all_distances(
    model: Transformer,
    layer: int,
    asked: Sequence[NestedFraction],
    variants: Mapping[str, Sequence[NestedFraction]],
) -> dict[str, Floats]:
    """How far each exchange moves the states: (question, at the operator and elsewhere)."""
    before = _states(model, layer, asked)
    return {
        two: np.array(
            [
                _distances(*each)
                for each in zip(asked, before, _states(model, layer, after), strict=True)
            ]
        )
        for two, after in variants.items()
    }


def _states(model: Transformer, layer: int, asked: Sequence[NestedFraction]) -> list[Floats]:
    """What the layer makes of each question: (position, d_model)."""
    sample = sample_of(asked, "nested fractions")
    name = f"encoder.{layer}.output"
    return [piece.astype(np.float64) for piece in record(model, sample, [name])[name]]


def _distances(asked: NestedFraction, before: Floats, after: Floats) -> tuple[float, float]:
    """How far a state moved, relative to its length: at the operator, and on average elsewhere."""
    length = (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)) / 2
    moved = np.linalg.norm(before - after, axis=1) / length
    is_number = [False, *(symbol.isdigit() for symbol in asked.question), False]
    return float(moved[asked.operator]), float(moved[~np.array(is_number)].mean())


def _exchange(
    letters: str,
    distances: Floats,
    before: Sequence[NestedFraction],
    after: Sequence[NestedFraction],
    said_before: Sequence[str],
    said_after: Sequence[str],
) -> Exchange:
    answered = np.array([one.answer == said for one, said in zip(before, said_before, strict=True)])
    right = np.array([one.answer == said for one, said in zip(after, said_after, strict=True)])
    same = np.array([one == other for one, other in zip(said_before, said_after, strict=True)])
    n_answered, n_same = int(answered.sum()), int((same & answered).sum())
    at_operator = distances[:, 0]
    return Exchange(
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


def _ratio(distances: Mapping[str, Floats]) -> Ratio | None:
    """The distance at the operator after confusable exchanges as a multiple of the control's."""
    own, control = (
        np.mean([distances[two][:, 0] for two in letters], axis=0)
        for letters in (CONFUSABLE, CONTROL)
    )
    if control.mean() < ROUNDING:
        return None
    interval = resample(len(own), lambda counts: (counts @ own) / (counts @ control))
    return Ratio(value=float(own.mean() / control.mean()), interval=interval)


def save(result: Binding, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the distances, and what exchanged roles do to answers.

    The questions asked are the result's own; of the context only model and seed are used.
    """
    context = replace(context, sample=result.sample)
    path = outcome.write(folder, "binding", result.to_values(), context)
    files = [path, *binding_problem_figure.draw(result, context, Path(folder))]
    if any(each.n for one in result.interchanges for each in one.exchanges):
        files += interchange_figure.draw(result.interchanges, context, Path(folder), result.seed)
    return files
