"""The layers of a Transformer: embedding, feed-forward layer, cells."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.errors import TextError
from tp_transformer.model.attention import CrossAttention, SelfAttention
from tp_transformer.model.config import TransformerConfig
from tp_transformer.model.layout import Pattern
from tp_transformer.model.search import LayerCache
from tp_transformer.model.trace import Traced


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Return the positions of Vaswani et al., sines and cosines interleaved, in float64."""
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    position = torch.arange(n_positions, dtype=torch.float64, device="cpu")
    angle = position[:, None] * 10_000.0**-exponent
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]


class Embedding(nn.Module):
    """Token and position embeddings, bound like fillers to roles: x * (W_p x + b_p + 1).

    One matrix E is used for source, target and output. Its initial standard deviation is
    1 / sqrt(d_model); at the input it is scaled by sqrt(d_model) to the paper's N(0, 1).
    """

    def __init__(self, config: TransformerConfig, n_vocab: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.symbols = nn.Embedding(n_vocab, d_model)
        self.role_proj = nn.Linear(d_model, d_model) if config.embedding_binding else None
        self.dropout = nn.Dropout(config.dropout)
        self.n_positions = config.n_positions
        # Not a buffer, which a cast of the model would round irreversibly.
        self._positions = sinusoids(config.n_positions, d_model)

    def initialise(self) -> None:
        """Initialise E and W_p with standard deviation 1 / sqrt(d_model)."""
        spread = self.symbols.embedding_dim**-0.5
        nn.init.normal_(self.symbols.weight, std=spread)
        if self.role_proj is not None:
            nn.init.normal_(self.role_proj.weight, std=spread)

    def forward(self, ids: Tensor, positions: slice | Tensor, longest: int) -> Tensor:
        """Embed ids (batch, position) at these positions, which are all below `longest`."""
        self.check_length(longest)
        state: Tensor = self.symbols(ids) * math.sqrt(self.symbols.embedding_dim)
        state = state + self.positions_like(state)[positions]
        if self.role_proj is not None:
            state = torch.addcmul(state, state, self.role_proj(state))  # x + x * role
        return self.dropout(state)  # (batch, position, d_model)

    def check_length(self, longest: int) -> None:
        """Raise if a text of so many tokens has more positions than the model."""
        if longest > self.n_positions:
            raise TextError(
                f"a text of {longest} tokens, including start and end, is longer than the "
                f"{self.n_positions} positions of the model"
            )

    def positions_like(self, state: Tensor) -> Tensor:
        """Return the vectors of all positions, (position, d_model), in the type of `state`."""
        if self._positions.dtype != state.dtype or self._positions.device != state.device:
            self._positions = sinusoids(self.n_positions, state.shape[-1]).to(state)
        return self._positions

    def logits(self, state: Tensor) -> Tensor:
        """Return the logits after each position (equation 6 without the softmax).

        They are never rounded to bfloat16 by autocast: logits of 20 would be rounded to 1/8.
        """
        weight = self.symbols.weight
        device = state.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return state @ weight.T  # (batch, position, n_vocab)
        with torch.autocast(device, enabled=False):
            return state.to(weight.dtype) @ weight.T


class FeedForward(nn.Module):
    """Two affine maps with a ReLU in between (equation 5)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, d_ff)
        self.contract = nn.Linear(d_ff, d_model)

    def initialise(self) -> None:
        """Initialise both matrices Xavier-uniformly."""
        nn.init.xavier_uniform_(self.expand.weight)
        nn.init.xavier_uniform_(self.contract.weight)

    def forward(self, state: Tensor) -> Tensor:
        """Transform each position separately."""
        hidden = self.expand(state)
        return self.contract(F.relu(hidden, inplace=not hidden.requires_grad))


class EncoderCell(Traced):
    """Normalise, attend, add; normalise, feed forward, add; normalise once more (section 2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.feed_forward = FeedForward(config.d_model, config.d_ff)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.output_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def points(self) -> tuple[str, ...]:
        """Return the names of the trace points: the output of the cell."""
        return ("output",)

    def forward(self, state: Tensor, pattern: Pattern) -> Tensor:
        """Apply the cell to states (batch, source, d_model)."""
        attended = self.self_attention(self.self_attention_norm(state), pattern)
        state = state + self.dropout(attended)
        state = state + self.dropout(self.feed_forward(self.feed_forward_norm(state)))
        return self.point("output", self.output_norm(state))


class DecoderCell(Traced):
    """A cell of the encoder with cross-attention between its two sub-layers (section 2.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config.d_model, config.d_ff)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.output_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def points(self) -> tuple[str, ...]:
        """Return the names of the trace points: the output of the cell."""
        return ("output",)

    def forward(
        self,
        state: Tensor,
        pattern: Pattern,
        memory: tuple[Tensor, Tensor],
        memory_pattern: Pattern,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Apply the cell to states (batch, target, d_model).

        `memory` has the keys and values of the source.
        """
        attended = self.self_attention(self.self_attention_norm(state), pattern, cache)
        state = state + self.dropout(attended)
        attended = self.cross_attention(self.cross_attention_norm(state), *memory, memory_pattern)
        state = state + self.dropout(attended)
        state = state + self.dropout(self.feed_forward(self.feed_forward_norm(state)))
        return self.point("output", self.output_norm(state))
