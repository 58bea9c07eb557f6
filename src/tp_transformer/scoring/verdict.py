"""Right or wrong: the verdict on each answer, by one pass under teacher forcing.

Greedy decoding gives the answer exactly if at each of its positions, given the right symbols before
it, the right symbol has the highest score: up to the first mistake both see the same symbols. So
one pass over the known answers tells what decoding symbol by symbol would, many times as fast.

How far a row is from the other verdict is one number, its margin: the least, over its positions, of
the right symbol's score minus the best other one's. A row is right if it is above 0. Rounding
depends on which rows are computed together, so rows whose margin is near 0 are decided in float64,
one verdict for any batch size and number of processes.
"""

import copy
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tp_transformer.data.batch import Batch, group_by_length
from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.foundation.errors import UserError
from tp_transformer.model.family import AnyModel
from tp_transformer.model.loss import token_losses

# Symbols of one pass. A CPU is quickest when a pass stays in its cache (tp-transformer-small, one
# core: 300 questions/s with 4,096 symbols, 170 with 16,384); a GPU wants many at once.
CPU_TOKENS, GPU_TOKENS = 4_096, 65_536
# Scores of trained models, in float32 and in float64, differ by less than a tenth of the first
# (docs/evaluation.md). What is a near-tie is judged by the margin in float64, so the list of them
# does not depend on rounding either: whoever is below the second is below the first.
SUSPECT = 2e-3  # a margin in float32 that float64 has to decide
NEAR_TIE = 1e-3  # a margin in float64 that is reported
# In bfloat16 the margins below 1 of a trained model were off by 0.17 at most (docs/evaluation.md).
DOUBTFUL = 0.5  # a margin in bfloat16 that float32 has to look at

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdicts:
    """Of each answer: whether it is right, by how much, and its negative log-likelihood."""

    right: Bools
    margin: Floats
    loss: Floats


def passes(source_lengths: Ids, target_lengths: Ids, limit: int) -> list[Ids]:
    """Rows in passes of about equal lengths, the longest first, of at most `limit` symbols each.

    Sorting all rows, not those of a module or a part, leaves next to nothing to pad, and passes
    that are full. The longest first: what does not fit into memory shows at once.
    """
    cost = source_lengths + target_lengths
    return group_by_length(
        source_lengths, target_lengths, limit=limit, cost=cost, longest_first=True
    )


def judge(model: AnyModel, source: Ragged, target: Ragged) -> Verdicts:
    """The verdicts on known answers, in the order of the rows."""
    right, margin, loss = _by_token(model, source, target)
    starts = np.cumsum(target.lengths - 1) - (target.lengths - 1)
    found = Verdicts(
        np.logical_and.reduceat(right, starts),
        np.minimum.reduceat(margin, starts),
        np.add.reduceat(loss, starts),
    )
    if not np.isfinite(found.loss).all():
        raise UserError("the model's scores are not finite: its weights are damaged or too large")
    return found


def judge_in_bfloat16(model: AnyModel, source: Ragged, target: Ragged) -> Verdicts:
    """The same with products in bfloat16, except for the rows that this leaves in doubt."""
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
        found = judge(model, source, target)
    doubtful = np.flatnonzero(np.abs(found.margin) < DOUBTFUL)
    if len(doubtful):
        again = judge(model, source.take(doubtful), target.take(doubtful))
        for field in fields(Verdicts):
            getattr(found, field.name)[doubtful] = getattr(again, field.name)
    return found


def in_double(model: AnyModel) -> AnyModel:
    """A copy of a model that computes in float64; on the CPU, as Apple's GPUs have no float64."""
    return copy.deepcopy(model).to("cpu", torch.float64)


def _by_token(model: AnyModel, source: Ragged, target: Ragged) -> tuple[Bools, Floats, Floats]:
    """Of each token to predict: whether it is the likeliest, its margin, its loss.

    The tokens are those of all rows, row after row.
    """
    device = next(model.parameters()).device
    layout = model.layout_for(device)
    batch = Batch.from_ragged(source, target, model.vocabulary.pad, layout).to(device)
    with torch.inference_mode():
        logits: Tensor = model(batch)
        rows = batch.target_layout
        loss = rows.tokens(token_losses(logits, batch))
        scores, wanted = rows.tokens(logits), rows.tokens(batch.target_output)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        right = wide.argmax(dim=-1) == wanted
        own = wide.gather(1, wanted[:, None])
        best_other = wide.scatter(1, wanted[:, None], -torch.inf).amax(dim=-1)
        margin = own[:, 0] - best_other
    return right.cpu().numpy(), margin.cpu().double().numpy(), loss.cpu().double().numpy()
