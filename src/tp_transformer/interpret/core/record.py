"""Activations at the named points of a model, question by question and without padding.

The answers are teacher-forced, not decoded: where an answer is correct, the decoder's points have
the values that they have in greedy decoding.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.errors import UserError
from tp_transformer.interpret.core.options import AnalysisOptions, chosen
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.core.vectors import Activations
from tp_transformer.model.batch import Batch
from tp_transformer.model.checkpoint import AnyModel, from_config
from tp_transformer.model.solver import evaluating
from tp_transformer.model.transformer import Transformer

ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
ATTENTIONS = {
    ENCODER: "encoder.{}.self_attention",
    DECODER: "decoder.{}.self_attention",
    CROSS: "decoder.{}.cross_attention",
}
TITLES = {
    ENCODER: "Encoder self-attention",
    DECODER: "Decoder self-attention",
    CROSS: "Attention of the decoder to the question",
}


def checked_model(model: AnyModel, options: AnalysisOptions) -> Transformer:
    """Return the model if it can be analysed with these options; an LSTM cannot."""
    if not isinstance(model, Transformer):
        raise UserError("this analysis looks at attention, which an LSTM does not have")
    if options.needs_characters and model.vocabulary.is_words:
        raise UserError(
            "this analysis looks at the characters of expressions, but the tokens of this model "
            "are words"
        )
    options.check(model.config)
    return model


def point(where: str, layer: int, name: str) -> str:
    """Return the full name of a point, such as `role`, of the attention in a layer."""
    return f"{chosen('attention', where, ATTENTIONS).format(layer)}.{name}"


def untrained(model: Transformer, seed: int) -> Transformer:
    """Return a model of the same configuration with reinitialised weights.

    The weights differ from those that training of this model started from.
    """
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        other = from_config(model.config, model.vocabulary)
    assert isinstance(other, Transformer)  # noqa: S101  for the type checker
    return other.to(parameter.device, parameter.dtype).eval()


class Recording:
    """Activations at named points for each question of a sample, without padding."""

    def __init__(self, pieces: dict[str, list[Activations]]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> list[Activations]:
        """For each question (head, position, d_head), or (position, d_model) for states.

        Attention weights are (head, query, key).
        """
        return self._pieces[name]

    def flat(self, name: str) -> Activations:
        """Return the vectors of all questions, concatenated: (position, head, d_head).

        States have no head axis: (position, d_model).
        """
        pieces = self[name]
        if pieces[0].ndim == 2:
            return np.concatenate(pieces)
        return np.concatenate([piece.transpose(1, 0, 2) for piece in pieces])


def record(model: AnyModel, sample: Sample, names: Sequence[str]) -> Recording:
    """Run the model over a sample and keep the activations at the named points (no wildcards)."""
    pieces: dict[str, list[Activations]] = {name: [] for name in names}
    device = next(model.parameters()).device
    order: list[int] = []
    at_keys = {"key", "value"}
    if isinstance(model, Transformer) and model.config.weightless_binding().binds_values:
        at_keys.add("role")
    with evaluating(model), torch.no_grad(), model.trace(*names) as trace:
        for indices, part in sample.batches():
            source = model.vocabulary.encode(part.questions)
            target = model.vocabulary.encode(part.answers)
            model(Batch.from_ragged(source, target, model.vocabulary.pad).to(device))
            for name in names:
                queries, keys = _lengths(name, source, target)
                rows = trace[name].float().cpu().numpy()
                pieces[name] += _unpadded(rows, name.rpartition(".")[2], at_keys, queries, keys)
            order += indices
    places = np.argsort(order)
    return Recording({name: [piece[place] for place in places] for name, piece in pieces.items()})


def _lengths(name: str, source: Ragged, target: Ragged) -> tuple[Ids, Ids]:
    """Return the numbers of query and key positions at a point, for each question."""
    in_decoder = name.startswith("decoder")
    answers = target.lengths - 1  # decoder inputs: without the end token
    to_answer = in_decoder and name.rpartition(".")[0].endswith("self_attention")
    return (answers if in_decoder else source.lengths), (answers if to_answer else source.lengths)


def _unpadded(
    rows: Activations, point: str, at_keys: Collection[str], queries: Ids, keys: Ids
) -> list[Activations]:
    """Return the rows of a padded tensor, each cut to its own length."""
    if point == "weights":
        return [
            row[:, :query, :key].copy() for row, query, key in zip(rows, queries, keys, strict=True)
        ]
    positions = keys if point in at_keys else queries
    return [row[..., :length, :].copy() for row, length in zip(rows, positions, strict=True)]
