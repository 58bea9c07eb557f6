"""The gradient of a batch: the same in one pass or many, on one rank or several."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.data.batch import Batch
from tp_transformer.foundation.distributed import Ranks
from tp_transformer.training.checkpoint import AnyModel
from tp_transformer.training.passes import Share
from tp_transformer.training.signals import Signals


class _SummedLoss(nn.Module):
    """A model's loss as a module's forward pass, which is what can be distributed."""

    def __init__(self, model: AnyModel, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        losses = (self.model.loss(one, label_smoothing=self.label_smoothing) for one in batches)
        loss = reduce(add, losses)
        return loss.objective, loss.total.detach(), loss.n_right


class Gradient:
    """Adds up the gradient of the mean loss over the symbols of a whole batch, of all ranks."""

    def __init__(
        self, model: AnyModel, ranks: Ranks, *, seed: int, label_smoothing: float = 0.0
    ) -> None:
        self.ranks, self.seed = ranks, seed
        self._loss: nn.Module = _SummedLoss(model, label_smoothing)

    def distribute(self) -> None:
        """From now on have ranks average their gradients, where there are several."""
        self._loss = self.ranks.wrap(self._loss)

    def add_up(self, share: Share, step: int, signals: Signals) -> dict[str, Tensor] | None:
        """Add the gradient of a step to the parameters'; return the loss and the right answers.

        Ranks average their gradients, so each divides by its share of the symbols. A lone rank that
        is told to stop does so between two passes, and returns None: at paper size on a CPU a step
        takes minutes. Autocast belongs around this, not inside: it then casts the weights once for
        all passes.
        """
        ranks = self.ranks
        torch.manual_seed(self._seed_of(step))
        n_tokens = torch.tensor(share.n_tokens, dtype=ranks.wide, device=ranks.device)
        scale = ranks.n_ranks / ranks.sum(n_tokens)
        totals: list[Tensor] = []
        rights: list[Tensor] = []
        for number, batches in enumerate(share.passes, 1):
            if signals.received and ranks.n_ranks == 1:
                return None
            is_last = number == len(share.passes)
            with nullcontext() if is_last else ranks.no_sync(self._loss):
                objective, total, n_right = self._loss([one.to(ranks.device) for one in batches])
                (objective * scale).backward()
            totals.append(total)
            rights.append(n_right)
        return {"loss": torch.stack(totals).sum(), "right": torch.stack(rights).sum()}

    def _seed_of(self, step: int) -> int:
        """What the random numbers of a step and rank follow from; there is none to save."""
        numbers = (self.seed, step, self.ranks.rank)
        return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def summed(
    ranks: Ranks, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]
) -> dict[str, float]:
    """The sums over all ranks, read at once."""
    measured = torch.stack([tensor.to(ranks.wide) for tensor in tensors.values()])
    counted = torch.tensor(list(numbers.values()), dtype=ranks.wide).to(ranks.device)
    sums = ranks.sum(torch.cat([measured, counted])).tolist()
    return dict(zip([*tensors, *numbers], sums, strict=True))
