"""Validation: loss and exact match on questions that are not trained on.

Questions held out of the training split select the best model. Questions of the first test split
(of the Mathematics Dataset, interpolation) are test questions: their scores are recorded (a
monitor) but have no effect on the run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.store import Split
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.layout import Layout, Packed
from tp_transformer.model.loss import token_loss
from tp_transformer.model.solver import evaluating
from tp_transformer.ops.engine import engine_for
from tp_transformer.ranges import Count, PositiveInt, check_fields
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.training.gradient import LocalBatch

QuestionsByModule = Mapping[str, tuple[Ragged, Ragged]]  # sources and targets, by module
LocalQuestions = Callable[[int, int], QuestionsByModule]  # called with rank, n_ranks


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation on questions held out of the training split.

    Attributes:
        every: number of steps between validations
        count: number of questions, spread evenly over modules and difficulties; 0 for no validation
        monitor: number of questions of the first test split to score at each validation, spread
            evenly over modules; 0 for none. Their scores affect neither checkpoints nor stopping
    """

    every: PositiveInt = 1000
    count: Count = 2048
    monitor: Count = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Score:
    """The loss per token, and the share of answers that are entirely correct."""

    loss: float
    exact_match: float
    n: int
    modules: dict[str, float]  # the exact match of each


def monitored(
    split: Split, modules: str | Iterable[str], count: int, vocabulary: Vocabulary
) -> LocalQuestions:
    """Return the first questions of each module of a split, about `count` in total."""
    segments = split.select(modules)
    quotient, remainder = divmod(count, max(len(segments), 1))
    rows = {
        segment.module: np.array(segment.rows[: quotient + (number < remainder)])
        for number, segment in enumerate(segments)
    }
    if not any(map(len, rows.values())):
        raise SettingsError(f"{split.path} has no questions of these modules to monitor")
    return lambda rank, n_ranks: {
        module: split.tokens(module_rows[rank::n_ranks], vocabulary)
        for module, module_rows in rows.items()
        if len(module_rows)
    }


def validate(
    model: AnyModel,
    shares: QuestionsByModule,
    ranks: Ranks,
    symbols_per_pass: int,
    layout: type[Layout],
) -> Score:
    """Score a model on the questions of all ranks; return the result on each rank."""
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
    """Return the summed loss and the numbers of tokens, correct answers and rows."""
    local = LocalBatch.of(*rows, model.vocabulary.pad, limit, layout)
    engine = engine_for(model) if layout is Packed else None
    sums = torch.zeros(4, dtype=ranks.wide, device=ranks.device)
    sums[1], sums[3] = local.n_tokens, local.n_rows
    for batches in local.micro_batches:
        for batch in batches:
            batch = batch.to(ranks.device)
            loss = token_loss((engine or model)(batch), batch)
            sums[0] += loss.total.to(ranks.wide)
            sums[2] += loss.n_right.to(ranks.wide)
    return sums
