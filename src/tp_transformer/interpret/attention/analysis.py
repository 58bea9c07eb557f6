"""Attention maps (section 5.2 of the paper, figure 3), and the heads that follow a relation.

The paper's authors found by inspection a head whose denominators attend to their division. `search`
finds such heads: it ranks all heads of the encoder by how well they follow each relation.
"""

import numpy as np

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.interpret.attention import following
from tp_transformer.interpret.attention.following import ModelAttention, Ranking
from tp_transformer.interpret.attention.result import IN_COLUMN, AttentionMap, AttentionResult
from tp_transformer.interpret.core.options import chosen, head_indices, layer_index
from tp_transformer.interpret.core.record import (
    DECODER,
    ENCODER,
    checked_model,
    point,
    record,
    untrained,
)
from tp_transformer.interpret.core.relations import RELATIONS
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample, token_texts
from tp_transformer.interpret.core.vectors import Activations
from tp_transformer.interpret.options import AttentionOptions
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.progress import track

# Untrained models. With 3, another untrained model seemed to follow 1 relation of 45 (small models,
# 128 questions); with 9, 1 of 240.
INITIAL_DRAWS = 9


def analyse(
    model: AnyModel, sample: Sample, options: AttentionOptions, seed: int
) -> AttentionResult:
    """Map the attention of a layer for a few questions; in the encoder, search for relations."""
    model = checked_model(model, options)
    where, layer = options.where, layer_index(options.layer, model.config.n_layers)
    name = point(where, layer, "weights")
    heads = head_indices(options.head, model.config.n_heads)
    shown = _shown(model, sample, options)
    weights = record(model, shown, [name])[name]
    *maps, shortest = (
        _map(question, answer, piece[heads], where, model.vocabulary)
        for question, answer, piece in zip(shown.questions, shown.answers, weights, strict=True)
    )
    is_words = model.vocabulary.is_words
    is_searched = where == ENCODER and not is_words
    return AttentionResult(
        context=Context.of(model, sample, seed),
        where=where,
        layer=layer,
        heads=tuple(heads),
        maps=tuple(maps),
        are_given=options.questions is not None,
        shortest=shortest,
        rankings=search(model, sample, options.relation, seed) if is_searched else (),
        is_words=is_words,
    )


def _map(
    question: str, answer: str, weights: Activations, where: str, vocabulary: Vocabulary
) -> AttentionMap:
    source, target = token_texts(question, vocabulary), token_texts(answer, vocabulary)[:-1]
    return AttentionMap(
        question=question,
        answer=answer,
        queries=source if where == ENCODER else target,
        keys=target if where == DECODER else source,
        weights=weights,
    )


def _shown(model: Transformer, sample: Sample, options: AttentionOptions) -> Sample:
    """Return the questions to show, followed by the shortest question."""
    if options.questions is None:
        indices = sample.shown(options.shown, n_characters=IN_COLUMN)
    else:
        sample = Sample.of(options.questions, model)
        indices = list(range(len(sample)))
    shortest = min(range(len(sample)), key=lambda index: len(sample.questions[index]))
    return sample.some([*indices, shortest])


def search(
    model: Transformer, sample: Sample, relation: str | None = None, seed: int = 0
) -> tuple[Ranking, ...]:
    """Rank all heads of the encoder by how well they follow one relation, or each of them.

    The same search in untrained models gives the largest margin that occurs without training.
    """
    relations = (
        RELATIONS if relation is None else {relation: chosen("relation", relation, RELATIONS)}
    )
    margins = [
        {name: following.largest_margin(name, find, attention) for name, find in relations.items()}
        for attention in (
            _attention(untrained(model, seed + draw), sample)
            for draw in track("searching untrained models", range(INITIAL_DRAWS))
        )
    ]
    initial = {name: max(largest[name] for largest in margins) for name in relations}
    return following.rank(relations, _attention(model, sample), initial=initial, seed=seed)


def _attention(model: Transformer, sample: Sample) -> ModelAttention:
    names = [point(ENCODER, layer, "weights") for layer in range(model.config.n_layers)]
    recording = record(model, sample, names)
    weights = [
        np.stack(layers) for layers in zip(*(recording[name] for name in names), strict=True)
    ]
    return ModelAttention.of(weights, sample.parsed)
