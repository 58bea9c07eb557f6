"""The gradient of a batch, independent of its micro-batches and of the number of ranks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.model.batch import Batch
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.training.checkpoint import AnyModel
from tp_transformer.training.local_batch import LocalBatch
from tp_transformer.training.signals import Signals


class _SummedLoss(nn.Module):
    """The loss as the forward method of a module, as DistributedDataParallel requires."""

    def __init__(self, model: AnyModel, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        losses = (self.model.loss(one, label_smoothing=self.label_smoothing) for one in batches)
        loss = reduce(add, losses)
        return loss.objective, loss.total.detach(), loss.n_right


class Gradient:
    """Accumulates the gradient of the mean loss per token over the global batch."""

    def __init__(
        self, model: AnyModel, ranks: Ranks, seed: int, label_smoothing: float = 0.0
    ) -> None:
        self.ranks, self.seed = ranks, seed
        self._loss: nn.Module = _SummedLoss(model, label_smoothing)

    def distribute(self) -> None:
        """Average gradients over ranks from now on, if there are several."""
        self._loss = self.ranks.wrap(self._loss)

    def accumulate(
        self, local: LocalBatch, step: int, signals: Signals
    ) -> dict[str, Tensor] | None:
        """Accumulate the gradient of a step; return the loss and the number of correct answers.

        Gradients are averaged over ranks, so each rank scales its sum by the number of ranks over
        the global number of tokens. A single rank that receives a signal stops between two micro-
        batches and returns None, because at the paper's size a step on a CPU takes minutes. Enter
        autocast outside of this call, so that weights are cast once for all micro-batches.
        """
        ranks = self.ranks
        torch.manual_seed(self._seed_of(step))
        n_tokens = torch.tensor(local.n_tokens, dtype=ranks.wide, device=ranks.device)
        scale = ranks.n_ranks / ranks.sum(n_tokens)
        totals: list[Tensor] = []
        rights: list[Tensor] = []
        for number, batches in enumerate(local.micro_batches, 1):
            if signals.received and ranks.n_ranks == 1:
                return None
            is_last = number == len(local.micro_batches)
            with nullcontext() if is_last else ranks.no_sync(self._loss):
                objective, total, n_right = self._loss([one.to(ranks.device) for one in batches])
                (objective * scale).backward()
            totals.append(total)
            rights.append(n_right)
        return {"loss": torch.stack(totals).sum(), "right": torch.stack(rights).sum()}

    def _seed_of(self, step: int) -> int:
        """Return the seed of a step on this rank; no random state has to be saved."""
        numbers = (self.seed, step, self.ranks.rank)
        return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def summed(
    ranks: Ranks, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]
) -> dict[str, float]:
    """Return the sums over all ranks, with a single transfer from the device."""
    measured = torch.stack([tensor.to(ranks.wide) for tensor in tensors.values()])
    counted = torch.tensor(list(numbers.values()), dtype=ranks.wide).to(ranks.device)
    sums = ranks.sum(torch.cat([measured, counted])).tolist()
    return dict(zip([*tensors, *numbers], sums, strict=True))
