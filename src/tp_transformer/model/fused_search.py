"""Searches of a Transformer by C kernels alone."""

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.model.fused import Known, embed, fused_embedding, packed_ends, run_cells
from tp_transformer.model.fused_state import FusedState, first_state
from tp_transformer.model.layers import Embedding


class FusedSearch:
    """Greedy search, and what a beam search needs, of a model that the kernels know.

    The model is checked once, before all searches, and must not change during them.
    """

    def __init__(
        self, embedding: Embedding, encoder: Known, decoder: Known, vocabulary: Vocabulary
    ) -> None:
        self._embedding, self._encoder, self._decoder = embedding, encoder, decoder
        self.vocabulary = vocabulary

    def pack(self) -> None:
        """Pack all weights into panels, which the following searches share.

        Without this, each search packs the encoder one layer at a time, into memory that all layers
        share, which is faster for a single search, and the decoder if there are many questions.
        """
        self._encoder = self._encoder.with_panels()
        self._decoder = self._decoder.with_panels()

    def greedy(self, questions: Ragged, max_length: int) -> Tensor:
        """Return the answers of at most `max_length` tokens, as `decoding.greedy` does."""
        ends: list[int] = questions.offsets.tolist()
        ids = np.ascontiguousarray(questions.ids, dtype=np.int64)
        if ends[0] != 0 or ends[-1] != len(ids):
            raise ValueError(f"rows from {ends[0]} to {ends[-1]} are not those of {len(ids)} ids")
        self._embedding.check_length(int(questions.lengths.max(initial=0)))
        state = embed(self._embedding, self._encoder, torch.from_numpy(ids), ends)
        steps = self.begin(self._encoded(state, ends), max_length)
        return steps.greedy(self.vocabulary.sos, self.vocabulary.eos, self.vocabulary.pad)

    def encode(self, source: Tensor, layout: Layout | None = None) -> tuple[Tensor, list[int]]:
        """Encode packed questions (1, position); return their states, and where rows end."""
        ends = state = None
        if layout is not None:
            ends = packed_ends(layout)
            state = fused_embedding(self._embedding, self._encoder, source, layout)
        if ends is None or state is None:
            raise ValueError("the kernels read packed rows of ids only")
        return self._encoded(state, ends)

    def begin(self, memory: tuple[Tensor, list[int]], max_length: int) -> FusedState:
        """Return the state before the first of at most `max_length` steps."""
        return first_state(self._embedding, self._decoder, *memory, max_length)

    def step(self, previous: Tensor, state: FusedState) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        return state.step(previous)

    def _encoded(self, state: Tensor, ends: list[int]) -> tuple[Tensor, list[int]]:
        """Replace the embedded tokens by the output of the encoder."""
        known = self._encoder
        run_cells([known.n_layers, *known.sizes], known.cell_addresses, state, ends)
        return state, ends
