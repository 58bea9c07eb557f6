"""The LSTM of Saxton et al. (2019), with thinking steps between question and answer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.model.base import ARCHITECTURES, Model
from tp_transformer.model.layout import Layout
from tp_transformer.ranges import Size, ThinkingSteps, check_fields

HiddenState = tuple[Tensor, Tensor]  # hidden and cell state, each (1, batch, d_hidden)


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """The configuration of the LSTM; the defaults are those of Saxton et al.

    Attributes:
        d_hidden: number of hidden units
        n_thinking: number of blank inputs between the question and the answer
        n_vocab: number of tokens, which are one-hot inputs; absent: the size of the vocabulary
    """

    d_hidden: Size = 2048
    n_thinking: ThinkingSteps = 16
    n_vocab: Size | None = 95

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def least_numbers(self) -> int:
        """A lower bound of the number of parameters."""
        return self.d_hidden * (4 * self.d_hidden + 5 * (self.n_vocab or 0))


@dataclass
class RecurrentState:
    """The state of the LSTM between steps."""

    hidden: HiddenState

    def select(self, rows: Tensor, questions: Tensor | None) -> None:
        """Keep these rows."""
        hidden, cell = self.hidden
        self.hidden = hidden.index_select(1, rows), cell.index_select(1, rows)


@ARCHITECTURES.register("lstm")
class LSTM(Model[LSTMConfig, HiddenState, RecurrentState]):
    """One LSTM that reads the question and then writes the answer, without attention."""

    config_type = LSTMConfig

    def __init__(self, config: LSTMConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(config, vocabulary)
        self.cell = nn.LSTM(self.n_vocab, config.d_hidden, batch_first=True)
        self.output = nn.Linear(config.d_hidden, self.n_vocab)

    def points(self) -> tuple[str, ...]:
        """The last hidden state before the answer, and the hidden states of the answer."""
        return ("encoder.output", "decoder.output")

    def encode(self, source: Tensor, layout: Layout | None = None) -> HiddenState:
        """Encode padded questions (batch, source), followed by the thinking steps."""
        # Padding becomes blank inputs, which are vectors of zeros.
        thinking = source.new_full((len(source), self.config.n_thinking), self.vocabulary.pad)
        lengths = (source != self.vocabulary.pad).sum(dim=1) + self.config.n_thinking
        packed = pack_padded_sequence(
            self._one_hot(torch.cat([source, thinking], dim=1)),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        _, (hidden, cell) = self.cell(packed)
        hidden = self.point("encoder.output", hidden.transpose(0, 1)).transpose(0, 1)
        return hidden.contiguous(), cell

    def decode(self, target: Tensor, memory: HiddenState, layout: Layout | None = None) -> Tensor:
        """Return the logits after each position of `target`: (batch, target, n_vocab)."""
        return self._advance(target, self.begin(memory, target.shape[1]))

    def begin(self, memory: HiddenState, max_length: int) -> RecurrentState:
        """Return the state before the first step."""
        return RecurrentState(memory)

    def step(self, previous: Tensor, state: RecurrentState) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""
        return self._advance(previous[:, None], state)[:, 0]

    def _advance(self, target: Tensor, state: RecurrentState) -> Tensor:
        outputs, state.hidden = self.cell(self._one_hot(target), state.hidden)
        return self.output(self.point("decoder.output", outputs))

    def _one_hot(self, ids: Tensor) -> Tensor:
        one_hot = F.one_hot(ids, self.n_vocab).to(self.output.weight.dtype)
        one_hot[..., self.vocabulary.pad] = 0.0
        return one_hot  # (batch, position, n_vocab)
