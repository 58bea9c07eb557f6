"""Activations at the named points of a model, question by question and without padding.

The answers are teacher-forced, not decoded: where an answer is correct, the decoder's points have
the values that they have in greedy decoding.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tp_transformer.data.batch import Batch
from tp_transformer.foundation.errors import UserError
from tp_transformer.interpret.core.options import AnalysisOptions, chosen
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.model.family import AnyModel, from_config
from tp_transformer.model.solver import evaluating
from tp_transformer.model.transformer import Transformer

Floats = npt.NDArray[np.float32]

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
    """Return the model if it can be analysed with these options.

    An LSTM cannot, nor can a model whose tokens are words.
    """
    if not isinstance(model, Transformer):
        raise UserError("this analysis looks at attention, which an LSTM does not have")
    if model.vocabulary.is_words:
        raise UserError(
            "analyses read questions character by character, and the tokens of this model are "
            "words; model.trace gives its activations"
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

    def __init__(self, pieces: dict[str, list[Floats]]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> list[Floats]:
        """For each question (head, position, d_head), or (position, d_model) for states.

        Attention weights are (head, query, key).
        """
        return self._pieces[name]

    def flat(self, name: str) -> Floats:
        """Return the vectors of all questions, concatenated: (position, head, d_head).

        States have no head axis: (position, d_model).
        """
        pieces = self[name]
        if pieces[0].ndim == 2:
            return np.concatenate(pieces)
        return np.concatenate([piece.transpose(1, 0, 2) for piece in pieces])


def record(model: AnyModel, sample: Sample, names: Sequence[str]) -> Recording:
    """Run the model over a sample and keep the activations at the named points (no wildcards)."""
    pieces: dict[str, list[Floats]] = {name: [] for name in names}
    device = next(model.parameters()).device
    order: list[int] = []
    with evaluating(model), torch.no_grad(), model.trace(*names) as trace:
        for indices, part in sample.batches():
            batch = Batch.from_text(part.questions, part.answers, model.vocabulary).to(device)
            model(batch)
            for name in names:
                pieces[name] += _unpadded(name, trace[name], part.questions, part.answers)
            order += indices
    places = np.argsort(order)
    return Recording({name: [own[place] for place in places] for name, own in pieces.items()})


def _unpadded(
    name: str, tensor: Tensor, questions: Sequence[str], answers: Sequence[str]
) -> list[Floats]:
    """Return the rows of a padded tensor, each cut to its own length."""
    source = [len(question) + 2 for question in questions]
    target = [len(answer) + 1 for answer in answers]  # decoder inputs: without the end token
    attention, _, point = name.rpartition(".")
    in_decoder = name.startswith("decoder")
    keys = target if in_decoder and attention.endswith("self_attention") else source
    queries = target if in_decoder else source
    positions = keys if point in {"key", "value"} else queries
    rows = tensor.float().cpu().numpy()
    if point == "weights":
        return [
            row[:, :query, :key].copy() for row, query, key in zip(rows, queries, keys, strict=True)
        ]
    return [row[..., :length, :].copy() for row, length in zip(rows, positions, strict=True)]
