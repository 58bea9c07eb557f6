"""Validation: loss and exact match on the questions that are held out of training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_transformer.data.batch import Batch
from tp_transformer.data.feed import Feed
from tp_transformer.distributed import Ranks
from tp_transformer.training.checkpoint import AnyModel
from tp_transformer.training.passes import divide


@dataclass(frozen=True)
class Score:
    """How a model does: the loss per symbol, and the share of answers without a mistake."""

    loss: float
    exact_match: float
    n: int
    modules: dict[str, float]  # the exact match of each


def validate(model: AnyModel, feed: Feed, ranks: Ranks, symbols_per_pass: int) -> Score:
    """Score a model; every rank does its share, and all have the result."""
    shares = feed.validation(ranks.rank, ranks.n_ranks)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            sums = [_sums(model, parts, ranks, symbols_per_pass) for parts in shares.values()]
    finally:
        model.train(was_training)
    table = ranks.sum(torch.stack(sums)).cpu()  # (module, 4)
    total, n_tokens, n_right, n_rows = table.sum(dim=0).tolist()
    by_module = (table[:, 2] / table[:, 3]).tolist()
    modules = dict(zip(shares, by_module, strict=True))
    return Score(total / n_tokens, n_right / n_rows, int(n_rows), modules)


def _sums(model: AnyModel, parts: Sequence[Batch], ranks: Ranks, symbols_per_pass: int) -> Tensor:
    """The loss, symbols, right answers and answers of some parts, summed."""
    wide = ranks.wide
    sums = torch.zeros(4, dtype=wide, device=ranks.device)
    for some in divide(parts, symbols_per_pass):
        loss = model.loss([part.to(ranks.device) for part in some])
        found = [loss.total.to(wide), loss.n_tokens.to(wide), loss.n_right.to(wide)]
        n_rows = torch.tensor(sum(map(len, some)), dtype=wide, device=ranks.device)
        sums += torch.stack([*found, n_rows])
    return sums
