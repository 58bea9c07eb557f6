"""The loss of known answers under teacher forcing, by token and summed.

Sums, not means, so that the losses of parts of a batch sum to the loss of the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tp_transformer.model.batch import Batch


@dataclass(frozen=True)
class Loss:
    """The negative log-likelihood of the answers of a batch, including end tokens."""

    total: Tensor
    n_tokens: Tensor
    n_right: Tensor  # number of answers whose tokens are all the likeliest
    penalty: Tensor | float = 0.0  # of the bindings, summed over tokens; only in training

    @property
    def mean(self) -> Tensor:
        """The loss per token, the training objective of the paper."""
        return self.total / self.n_tokens

    @property
    def objective(self) -> Tensor:
        """The sum over tokens that training minimises."""
        return self.total + self.penalty

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(
            self.total + other.total,
            self.n_tokens + other.n_tokens,
            self.n_right + other.n_right,
            self.penalty + other.penalty,
        )


def token_losses(logits: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Return the negative log-likelihood of each target token: (batch, target), 0 at padding.

    `logits` are what `model(batch)` returns, (batch, target, n_vocab).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(
        wide.flatten(0, 1),
        batch.target_output.flatten(),
        ignore_index=batch.pad,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.view_as(batch.target_output)


def token_loss(logits: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Loss:
    """Return the loss of the answers of a batch from the logits of `model(batch)`."""
    total = token_losses(logits, batch, label_smoothing).sum()
    wrong = (logits.argmax(dim=-1) != batch.target_output) & batch.target_mask
    n_wrong = batch.target_layout.row_sums(wrong.long()).count_nonzero()
    return Loss(total, batch.target_mask.sum(), len(batch) - n_wrong)
