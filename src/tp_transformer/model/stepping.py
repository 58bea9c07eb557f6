"""One more position of the decoder for every row, without what only training and traces need.

The numbers are those of the cells' own forward pass, and tests compare the two. But most of a step
of a single question is Python and the start of many small operations, and this way there are fewer
of them: rows stay matrices, weights are looked up once, nothing is asked about dropout or traces.
"""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.model.attention import CrossAttention, SelfAttention, attention_weights
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.cache import KeyValueCache
from tp_transformer.model.layers import DecoderCell, FeedForward

# From so many rows times heads on, products for all of them are quicker than the fused attention,
# which works through them one by one: 1.3 times with twice as many, 0.6 times with an eighth.
MANY_QUERIES = 256

_PLAIN = {
    *BINDINGS.values(),
    CrossAttention,
    DecoderCell,
    FeedForward,
    SelfAttention,
    nn.Dropout,
    nn.LayerNorm,
    nn.Linear,
    nn.ModuleList,
}


def is_plain(module: nn.Module) -> bool:
    """Whether a decoder is only what its weights say: not traced, training, hooked or rebuilt."""
    return all(
        type(part) in _PLAIN
        and not part.training
        and not part._forward_hooks
        and not part._forward_pre_hooks
        and not getattr(part, "_traces", ())
        for part in module.modules()
    )


class Stepper:
    """A decoder's cell that takes one position at a time, for every row of a batch."""

    def __init__(self, cell: DecoderCell) -> None:
        own, cross, feed_forward = cell.self_attention, cell.cross_attention, cell.feed_forward
        self.n_heads = own.n_heads
        self.bind_own = own.binding.forward if own.binding.needs_role else None
        self.bind_cross = cross.binding.forward if cross.binding.needs_role else None
        self.norms = [
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in (
                cell.self_attention_norm,
                cell.cross_attention_norm,
                cell.feed_forward_norm,
                cell.output_norm,
            )
        ]
        self.maps = [
            (linear.weight, linear.bias)
            for linear in (
                own.in_proj,
                own.out_proj,
                cross.in_proj,
                cross.out_proj,
                feed_forward.expand,
                feed_forward.contract,
            )
        ]

    def __call__(
        self, state: Tensor, cache: KeyValueCache, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The cell's output (row, d_model); keys, values and mask are those of the questions."""
        norms, maps, n_rows, n_heads = self.norms, self.maps, len(state), self.n_heads
        parts = F.linear(F.layer_norm(state, *norms[0]), *maps[0])
        parts = parts.view(n_rows, -1, n_heads, 1, key.shape[-1])
        query, new_key, new_value, *role = parts.unbind(1)  # (row, head, 1, d_head)
        bound = _attend(query, *cache.append(new_key, new_value), None)
        if self.bind_own is not None:
            bound = self.bind_own(bound, role[0])
        state = state + F.linear(bound.reshape(n_rows, -1), *maps[1])

        parts = F.linear(F.layer_norm(state, *norms[1]), *maps[2])
        parts = parts.view(len(key), n_rows // len(key), -1, n_heads, key.shape[-1])
        query, *role = parts.transpose(1, 3).unbind(2)  # (question, head, beam, d_head)
        bound = _attend(query, key, value, mask)
        if self.bind_cross is not None:
            bound = self.bind_cross(bound, role[0])
        state = state + F.linear(bound.transpose(1, 2).reshape(n_rows, -1), *maps[3])

        hidden = F.linear(F.layer_norm(state, *norms[2]), *maps[4]).relu_()
        state = state + F.linear(hidden, *maps[5])
        return F.layer_norm(state, *norms[3])


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Equations 2 and 3, by whichever way is quicker."""
    if query.shape[0] * query.shape[1] < MANY_QUERIES:
        return F.scaled_dot_product_attention(query, key, value, mask)
    return attention_weights(query, key, mask) @ value


def steppers(decoder: nn.ModuleList) -> list[Stepper]:
    """The cells of a decoder, or none if there is more to it than their weights."""
    if not is_plain(decoder):
        return []
    return [Stepper(cell) for cell in cast(Iterable[DecoderCell], decoder)]
