"""The gradient of a batch, independent of its micro-batches and of the number of ranks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from tp_transformer.data.vocabulary import Ragged
from tp_transformer.model.batch import Batch, cut, group_by_length
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.layout import Layout, Packed
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.runtime.signals import DeferredSignals


@dataclass(frozen=True)
class LocalBatch:
    """The rows of a batch that one rank computes, divided into micro-batches, and their sizes."""

    micro_batches: list[list[Batch]]  # each is one forward and backward pass
    n_rows: int
    n_tokens: int  # tokens to predict
    n_symbols: int  # source and target tokens
    n_positions: int  # the same with padding

    @classmethod
    def of(cls, source: Ragged, target: Ragged, pad: int, limit: int, layout: type[Layout]) -> Self:
        """Divide rows into micro-batches of at most `limit` tokens, with little or no padding.

        Micro-batches have ascending lengths of sources. A longer row is a micro-batch by itself.
        """
        cost = source.lengths + target.lengths - 1  # the decoder reads one token less
        micro_batches = []
        for rows in group_by_length(source.lengths, limit=limit, cost=cost):
            texts = source.take(rows), target.take(rows)
            is_packed = layout is Packed
            micro_batches.append(
                [Batch.from_ragged(*texts, pad, Packed)] if is_packed else cut(*texts, pad)
            )
        n_rows = len(source.lengths)
        n_tokens = int(target.lengths.sum()) - n_rows
        return cls(
            micro_batches=micro_batches,
            n_rows=n_rows,
            n_tokens=n_tokens,
            n_symbols=int(source.lengths.sum()) + n_tokens,
            n_positions=sum(
                batch.source.numel() + batch.target_input.numel()
                for batches in micro_batches
                for batch in batches
            ),
        )


class _SummedLoss(nn.Module):
    """The loss as the forward method of a module, as DistributedDataParallel requires."""

    def __init__(self, model: AnyModel, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        losses = (self.model.loss(batch, label_smoothing=self.label_smoothing) for batch in batches)
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
        self, local: LocalBatch, step: int, signals: DeferredSignals
    ) -> dict[str, Tensor] | None:
        """Accumulate the gradient of a step; return the loss and the number of correct answers.

        Gradients are averaged over ranks, so each rank scales its sum by the number of ranks over
        the global number of tokens. A single rank that receives a signal stops between two micro-
        batches and returns None, because at the paper's size a step on a CPU takes minutes. Enter
        autocast outside of this call, so that weights are cast once for all micro-batches.
        """
        ranks = self.ranks
        # The random numbers of a step follow from its number: no random state has to be saved.
        seeds = np.random.SeedSequence((self.seed, step, ranks.rank))
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        n_tokens = torch.tensor(local.n_tokens, dtype=ranks.wide, device=ranks.device)
        scale = ranks.n_ranks / ranks.sum(n_tokens)
        totals: list[Tensor] = []
        rights: list[Tensor] = []
        for number, batches in enumerate(local.micro_batches, 1):
            if signals.received and ranks.n_ranks == 1:
                return None
            is_last = number == len(local.micro_batches)
            with nullcontext() if is_last else ranks.no_sync(self._loss):
                objective, total, n_right = self._loss(
                    [batch.to(ranks.device) for batch in batches]
                )
                (objective * scale).backward()
            totals.append(total)
            rights.append(n_right)
        return {"loss": torch.stack(totals).sum(), "right": torch.stack(rights).sum()}


def summed(
    ranks: Ranks, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]
) -> dict[str, float]:
    """Return the sums over all ranks, with a single transfer from the device."""
    measured = torch.stack([tensor.to(ranks.wide) for tensor in tensors.values()])
    counted = torch.tensor(list(numbers.values()), dtype=ranks.wide).to(ranks.device)
    sums = ranks.sum(torch.cat([measured, counted])).tolist()
    return dict(zip([*tensors, *numbers], sums, strict=True))
