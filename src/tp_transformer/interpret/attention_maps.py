"""Where heads look (section 5.2 of the paper, figure 3), and which of them follow a relation.

The paper's authors found a head whose denominators attend to their division by looking. `search`
finds such heads: it ranks all of the encoder by how well they follow each relation of expressions.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tp_transformer.interpret import attention_maps_figure, following
from tp_transformer.interpret.attention_maps_result import AttentionMaps, Map
from tp_transformer.interpret.choices import chosen_heads, chosen_questions, chosen_relations
from tp_transformer.interpret.expressions import parse
from tp_transformer.interpret.following import Ranking
from tp_transformer.interpret.outcome import Context, write
from tp_transformer.interpret.record import (
    DECODER,
    ENCODER,
    START,
    Sample,
    chosen_layer,
    fresh,
    point,
    record,
    symbols,
    transformer_of,
)
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer

SHOWN = 3  # questions, as in the paper's figure
# Models with initial weights. Beside 3, one more such model seemed to follow 1 relation of 45 (of
# small models, 128 questions); beside 9, 1 of 240.
INITIAL_DRAWS = 9


def analyse(
    model: AnyModel,
    sample: Sample,
    *,
    where: str = ENCODER,
    layer: int = -1,
    head: int | None = None,
    relation: str | None = None,
    shown: int | Sequence[str] = SHOWN,
    seed: int = 0,
) -> AttentionMaps:
    """The maps of a layer's heads, or of one, for a few questions; the search in the encoder.

    Shown are so many questions of the sample, those with fractions of fractions first, or any that
    are given, with the model's own answers. One relation is searched for, or all.
    """
    model = transformer_of(model)
    if relation is not None:
        chosen_relations(relation)
    layer = chosen_layer(model, layer)
    name = point(where, layer, "weights")
    heads = chosen_heads(head, model.config.n_heads)
    few = _shown(model, sample, shown)
    weights = record(model, few, [name])[name]
    *maps, shortest = (
        Map(
            question=question,
            answer=answer,
            queries=symbols(question) if where == ENCODER else START + answer,
            keys=START + answer if where == DECODER else symbols(question),
            weights=own[heads],
        )
        for question, answer, own in zip(few.questions, few.answers, weights, strict=True)
    )
    return AttentionMaps(
        seed=seed,
        where=where,
        layer=layer,
        heads=tuple(heads),
        maps=tuple(maps),
        are_given=not isinstance(shown, int),
        shortest=shortest,
        rankings=search(model, sample, relation=relation, seed=seed) if where == ENCODER else (),
    )


def _shown(model: Transformer, sample: Sample, shown: int | Sequence[str]) -> Sample:
    """The questions to show, and once more the shortest that there is."""
    if isinstance(shown, int):
        numbers = chosen_questions(sample.questions, shown, in_line=attention_maps_figure.IN_COLUMN)
    else:
        answers = tuple(model.solve(shown))
        sample = Sample(questions=tuple(shown), answers=answers, origin="given questions")
        numbers = list(range(len(sample)))
    shortest = min(range(len(sample)), key=lambda one: len(sample.questions[one]))
    return sample.some([*numbers, shortest])


def search(
    model: AnyModel, sample: Sample, *, relation: str | None = None, seed: int = 0
) -> tuple[Ranking, ...]:
    """Rank all heads of the encoder by how well they follow a relation, or each of them.

    The same search in models with initial weights says how far chance gets a head.
    """
    chosen = chosen_relations(relation)
    model = transformer_of(model)
    drawn = [
        {name: following.greatest_margin(name, one, initial) for name, one in chosen.items()}
        for initial in (
            _attention(fresh(model, seed + number), sample) for number in range(INITIAL_DRAWS)
        )
    ]
    greatest = {name: max(margins[name] for margins in drawn) for name in chosen}
    return following.rank(chosen, _attention(model, sample), initial=greatest, seed=seed)


def _attention(model: Transformer, sample: Sample) -> following.Attention:
    """What all heads of the encoder attend to."""
    names = [point(ENCODER, number, "weights") for number in range(model.config.n_layers)]
    found = record(model, sample, names)
    weights = [np.stack(layers) for layers in zip(*(found[name] for name in names), strict=True)]
    return following.Attention.of(weights, [parse(question) for question in sample.questions])


def save(maps: AttentionMaps, context: Context, folder: str | Path) -> list[Path]:
    """Write the numbers and draw the figures; returns the files."""
    path = write(folder, f"attention-{maps.where}", maps.to_values(), context)
    return [path, *attention_maps_figure.draw(maps, context, Path(folder))]
