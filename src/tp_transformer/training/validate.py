"""Validation: loss and exact match on the questions that are held out of training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_transformer.data.feed import Feed
from tp_transformer.data.vocabulary import Ragged
from tp_transformer.distributed import Ranks
from tp_transformer.ranges import Count, PositiveInt, check_fields
from tp_transformer.training.checkpoint import AnyModel
from tp_transformer.training.passes import Share


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation on questions held out of the training split.

    Attributes:
        every: steps between two validations
        count: questions, spread evenly over modules and difficulties; 0 for no validation
    """

    every: PositiveInt = 1000
    count: Count = 2048

    def __post_init__(self) -> None:
        check_fields(self)


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
            sums = [_sums(model, rows, ranks, symbols_per_pass) for rows in shares.values()]
    finally:
        model.train(was_training)
    table = ranks.sum(torch.stack(sums)).cpu()  # (module, 4)
    total, n_tokens, n_right, n_rows = table.sum(dim=0).tolist()
    by_module = (table[:, 2] / table[:, 3]).tolist()
    modules = dict(zip(shares, by_module, strict=True))
    return Score(total / n_tokens, n_right / n_rows, int(n_rows), modules)


def _sums(model: AnyModel, rows: tuple[Ragged, Ragged], ranks: Ranks, limit: int) -> Tensor:
    """The loss, symbols, right answers and answers of some rows, summed."""
    share = Share.of(*rows, model.vocabulary.pad, limit, packed=model.packs_on(ranks.device))
    sums = torch.zeros(4, dtype=ranks.wide, device=ranks.device)
    sums[1], sums[3] = share.n_tokens, share.n_rows
    for batches in share.passes:
        for batch in batches:
            loss = model.loss(batch.to(ranks.device))
            sums[0] += loss.total.to(ranks.wide)
            sums[2] += loss.n_right.to(ranks.wide)
    return sums
