"""Whether each answer is correct, by one forward pass under teacher forcing.

Greedy decoding produces the correct answer if and only if, at each position and given the correct
tokens before it, the correct token has the highest score: up to the first mistake both read the
same tokens. One pass over the known answers therefore replaces decoding, and is many times faster.

The margin of a row is the minimum over its positions of the score of the correct token minus the
highest score of any other token. A row is correct if its margin is positive. Rounding depends on
which rows are computed together, so rows with a margin near 0 are decided in float64; verdicts are
then the same for any batch size and number of processes.
"""

import copy
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.errors import UserError
from tp_transformer.model.batch import Batch, group_by_length
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.layout import Packed
from tp_transformer.model.loss import token_losses
from tp_transformer.ops.engine import engine_for

# Maximum number of tokens of a batch. A CPU is fastest if a batch fits into its cache
# (tp-transformer-small, one core: 300 questions/s with 4,096 tokens, 170 with 16,384).
CPU_TOKENS, GPU_TOKENS = 4_096, 65_536
# Float32 changes the margins of trained models by less than a tenth of the difference between these
# two limits (docs/evaluation.md). Near-ties are defined by the margin in float64, so the list of
# them does not depend on rounding either: each near-tie is below SUSPECT in float32.
SUSPECT = 2e-3  # limit of margins in float32 that are recomputed in float64
NEAR_TIE = 1e-3  # limit of margins in float64 that are reported
# Bfloat16 changed margins below 1 of a trained model by at most 0.26 (docs/evaluation.md).
DOUBTFUL = 0.5  # limit of margins in bfloat16 that are recomputed in float32

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdicts:
    """For each answer: whether it is correct, its margin, its negative log-likelihood."""

    right: Bools
    margin: Floats
    loss: Floats


def passes(source_lengths: Ids, target_lengths: Ids, limit: int) -> list[Ids]:
    """Return batches of rows of similar lengths, the longest first, of at most `limit` tokens.

    Sorting all rows together, not by module, leaves almost no padding and fills the batches. The
    longest come first, so that a lack of memory shows at once.
    """
    cost = source_lengths + target_lengths
    return group_by_length(
        source_lengths, target_lengths, limit=limit, cost=cost, longest_first=True
    )


def judge(model: AnyModel, source: Ragged, target: Ragged) -> Verdicts:
    """Return the verdicts on known answers, in the order of the rows."""
    right, margin, loss = _by_token(model, source, target)
    starts = np.cumsum(target.lengths - 1) - (target.lengths - 1)
    verdicts = Verdicts(
        np.logical_and.reduceat(right, starts),
        np.minimum.reduceat(margin, starts),
        np.add.reduceat(loss, starts),
    )
    if not np.isfinite(verdicts.loss).all():
        raise UserError("the model's scores are not finite: its weights are damaged or too large")
    return verdicts


def judge_in_bfloat16(model: AnyModel, source: Ragged, target: Ragged) -> Verdicts:
    """Return the verdicts with products in bfloat16; recompute small margins in float32."""
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
        verdicts = judge(model, source, target)
    doubtful = np.flatnonzero(np.abs(verdicts.margin) < DOUBTFUL)
    if len(doubtful):
        again = judge(model, source.take(doubtful), target.take(doubtful))
        for field in fields(Verdicts):
            getattr(verdicts, field.name)[doubtful] = getattr(again, field.name)
    return verdicts


def in_double(model: AnyModel) -> AnyModel:
    """Return a copy of a model in float64 on the CPU, because Apple's GPUs lack float64."""
    return copy.deepcopy(model).to("cpu", torch.float64)


def _by_token(model: AnyModel, source: Ragged, target: Ragged) -> tuple[Bools, Floats, Floats]:
    """Return for each target token whether it is the likeliest, its margin and its loss.

    The rows are concatenated.
    """
    device = next(model.parameters()).device
    layout = model.layout_for(device)
    batch = Batch.from_ragged(source, target, model.vocabulary.pad, layout).to(device)
    with torch.inference_mode():
        engine = engine_for(model) if layout is Packed else None
        logits: Tensor = (engine or model)(batch)
        rows = batch.target_layout
        loss = rows.tokens(token_losses(logits, batch))
        scores, correct = rows.tokens(logits), rows.tokens(batch.target_output)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        right = wide.argmax(dim=-1) == correct
        best_other = wide.scatter(1, correct[:, None], -torch.inf).amax(dim=-1)
        margin = wide.gather(1, correct[:, None])[:, 0] - best_other
    return right.cpu().numpy(), margin.cpu().double().numpy(), loss.cpu().double().numpy()
