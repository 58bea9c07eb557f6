"""Greedy search of a Transformer by C kernels alone."""

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.model.fused import Known, embed, run_cells
from tp_transformer.model.fused_state import MANY_QUESTIONS, first_state
from tp_transformer.model.layers import Embedding


class FusedSearch:
    """Greedy search with an encoder and a decoder that the kernels know.

    The model is checked once, before the search, and must not change during it.
    """

    def __init__(
        self, embedding: Embedding, encoder: Known, decoder: Known, vocabulary: Vocabulary
    ) -> None:
        self._embedding, self._encoder, self._decoder = embedding, encoder, decoder
        self._vocabulary, self._has_panels = vocabulary, False

    def greedy(self, questions: Ragged, max_length: int) -> Tensor:
        """Return the answers of at most `max_length` tokens, as `decoding.greedy` does."""
        if not self._has_panels and len(questions.lengths) >= MANY_QUESTIONS:
            self._decoder, self._has_panels = self._decoder.with_panels(), True
        ends: list[int] = questions.offsets.tolist()
        ids = np.ascontiguousarray(questions.ids, dtype=np.int64)
        if ends[0] != 0 or ends[-1] != len(ids):
            raise ValueError(f"rows from {ends[0]} to {ends[-1]} are not those of {len(ids)} ids")
        self._embedding.check_length(int(questions.lengths.max(initial=0)))
        known, vocabulary = self._encoder, self._vocabulary
        state = embed(self._embedding, known, torch.from_numpy(ids), ends)
        run_cells([known.n_layers, *known.sizes], known.cell_addresses, state, ends)
        steps = first_state(self._embedding, self._decoder, state, ends, max_length)
        return steps.greedy(vocabulary.sos, vocabulary.eos, vocabulary.pad)
