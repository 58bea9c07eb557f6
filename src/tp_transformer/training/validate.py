"""Validation: loss and exact match on questions that are not trained on.

Those held out of the training split choose the best model. Those of the first test split (of the
Mathematics Dataset, interpolation) are test questions: their scores are only written down (a
monitor), and nothing a run does depends on them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.layout.base import Layout
from tp_transformer.data.store import Split
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.distributed import Ranks
from tp_transformer.errors import SettingsError
from tp_transformer.model.solver import evaluating
from tp_transformer.ranges import Count, PositiveInt, check_fields
from tp_transformer.training.checkpoint import AnyModel
from tp_transformer.training.passes import Share

Questions = Mapping[str, tuple[Ragged, Ragged]]  # sources and targets, by module
Shares = Callable[[int, int], Questions]  # of a rank, among so many ranks


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation on questions held out of the training split.

    Attributes:
        every: steps between two validations
        count: questions, spread evenly over modules and difficulties; 0 for no validation
        monitor: questions of the first test split to score at each validation, spread evenly over
            modules, 0 for none; no checkpoint is chosen and no run is ended by them
    """

    every: PositiveInt = 1000
    count: Count = 2048
    monitor: Count = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Score:
    """How a model does: the loss per symbol, and the share of answers without a mistake."""

    loss: float
    exact_match: float
    n: int
    modules: dict[str, float]  # the exact match of each


def monitored(
    split: Split, modules: str | Iterable[str], count: int, vocabulary: Vocabulary
) -> Shares:
    """The first questions of every module of a split, about `count` in all."""
    segments = split.select(modules)
    rows = {
        one.module: np.array(one.rows[: count // len(segments) + (number < count % len(segments))])
        for number, one in enumerate(segments)
    }
    if not any(map(len, rows.values())):
        raise SettingsError(f"{split.path} has no questions of these modules to monitor")
    return lambda rank, n_ranks: {
        module: split.tokens(own[rank::n_ranks], vocabulary)
        for module, own in rows.items()
        if len(own)
    }


def validate(
    model: AnyModel, shares: Questions, ranks: Ranks, symbols_per_pass: int, layout: type[Layout]
) -> Score:
    """Score a model; every rank does its share, and all have the result."""
    with evaluating(model), torch.no_grad():
        sums = [_sums(model, rows, ranks, symbols_per_pass, layout) for rows in shares.values()]
    table = ranks.sum(torch.stack(sums)).cpu()  # (module, 4)
    total, n_tokens, n_right, n_rows = table.sum(dim=0).tolist()
    by_module = (table[:, 2] / table[:, 3]).tolist()
    modules = dict(zip(shares, by_module, strict=True))
    return Score(total / n_tokens, n_right / n_rows, int(n_rows), modules)


def _sums(
    model: AnyModel,
    rows: tuple[Ragged, Ragged],
    ranks: Ranks,
    limit: int,
    layout: type[Layout],
) -> Tensor:
    """The loss, symbols, right answers and answers of some rows, summed."""
    share = Share.of(*rows, model.vocabulary.pad, limit, layout)
    sums = torch.zeros(4, dtype=ranks.wide, device=ranks.device)
    sums[1], sums[3] = share.n_tokens, share.n_rows
    for batches in share.passes:
        for batch in batches:
            loss = model.loss(batch.to(ranks.device))
            sums[0] += loss.total.to(ranks.wide)
            sums[2] += loss.n_right.to(ranks.wide)
    return sums
