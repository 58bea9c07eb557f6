"""Conversion of the masks of torch.

Masks of this package are True where a query may attend; boolean masks of torch are True where not.
"""

import math

import torch
from torch import Tensor


def refuse_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    n_heads: int,
) -> None:
    """Raise for shapes that would broadcast unintentionally, as torch does."""
    batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    if key.shape[:2] != (batch, keys) or value.shape[:2] != (batch, keys):
        raise ValueError(
            f"keys {tuple(key.shape)} and values {tuple(value.shape)} must have the batch of the "
            f"queries {tuple(query.shape)} and equal lengths"
        )
    for name, mask, shapes in (
        ("key_padding_mask", key_padding_mask, [(batch, keys)]),
        ("attn_mask", attn_mask, [(queries, keys), (batch * n_heads, queries, keys)]),
    ):
        if mask is None:
            continue
        if mask.shape not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"{name} has shape {tuple(mask.shape)} and must have {expected}")
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(f"{name} must be boolean or of floating point, not {mask.dtype}")


def merged_mask(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, query: Tensor, n_heads: int
) -> Tensor | None:
    """Combine the two masks of torch into one of this package, with four axes.

    Boolean masks of torch mark what to ignore; floating-point masks are added to the scores.
    """
    masks = []
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None, :])
    if attn_mask is not None and attn_mask.dim() == 3:  # (batch * head, query, key)
        masks.append(attn_mask.view(-1, n_heads, *attn_mask.shape[1:]))
    elif attn_mask is not None:
        masks.append(attn_mask[None, None])
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        ignored = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        return ~ignored
    return sum(
        (
            torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)
            if mask.dtype == torch.bool
            else mask.to(query.dtype)
            for mask in masks
        ),
        start=torch.zeros((), dtype=query.dtype, device=query.device),
    )
