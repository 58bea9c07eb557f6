"""Greedy search of a Transformer by C kernels alone."""

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.model.fused import Known, embed, run_cells
from tp_transformer.model.fused_state import first_state
from tp_transformer.model.layers import Embedding


class FusedSearch:
    """Greedy search with an encoder and a decoder that the kernels know.

    The model is checked once, before the search, and must not change during it. For a single
    question, checks in each method of the model would take as long as the encoder.
    """

    def __init__(
        self, embedding: Embedding, encoder: Known, decoder: Known, vocabulary: Vocabulary
    ) -> None:
        self._embedding, self._encoder, self._decoder = embedding, encoder, decoder
        self._vocabulary = vocabulary

    def greedy(self, questions: Ragged, max_length: int) -> Tensor:
        """Return the answers of at most `max_length` tokens, as `decoding.greedy` does."""
        ends: list[int] = questions.offsets.tolist()
        self._embedding.check_length(int(questions.lengths.max(initial=0)))
        known, vocabulary = self._encoder, self._vocabulary
        state = embed(self._embedding, known, torch.from_numpy(questions.ids), ends)
        run_cells([known.n_layers, *known.sizes], known.cell_addresses, state, ends)
        steps = first_state(self._embedding, self._decoder, state, ends, max_length)
        return steps.greedy(vocabulary.sos, vocabulary.eos, vocabulary.pad)
