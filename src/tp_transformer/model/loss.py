"""Token-summed loss and counts.

Sums, not means: parts of a batch that were computed apart add up to the loss of the whole.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tp_transformer.data.batch import Batch, Packed


@dataclass(frozen=True)
class Loss:
    """The negative log-likelihood of a batch's answers, end symbols included, padding not."""

    total: Tensor
    n_tokens: Tensor
    n_right: Tensor  # answers of which every symbol is the likeliest one, as greedy decoding's

    @property
    def mean(self) -> Tensor:
        """The loss per symbol, which the paper's models are trained on."""
        return self.total / self.n_tokens

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(
            self.total + other.total,
            self.n_tokens + other.n_tokens,
            self.n_right + other.n_right,
        )


def token_loss(logits: Tensor, batch: Batch | Packed, label_smoothing: float = 0.0) -> Loss:
    """The loss of `logits` (batch, target, n_vocab) for the symbols that should come next."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        wide.flatten(0, 1),
        batch.target_output.flatten(),
        ignore_index=batch.pad,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    wrong = (logits.argmax(dim=-1) != batch.target_output) & batch.target_mask
    return Loss(total, batch.target_mask.sum(), len(batch) - batch.count_rows(wrong))
