"""The Newton-Schulz iterations of Muon by a C kernel, with half of the operations of PyTorch."""

import torch
from torch import Tensor

from tp_transformer.ops import library
from tp_transformer.ops.library import is_plain, runs_as_written


def can_iterate(squares: Tensor) -> bool:
    """Whether the kernel is there and supports matrices (matrix, row, column)."""
    return (
        is_plain(squares, torch.float32)
        and squares.is_contiguous()
        and squares.shape[1] % 8 == 0
        and runs_as_written()
        and library.load() is not None
    )


@torch.library.custom_op("tp_transformer::total_factor", mutates_args=())
def total_factor(squares: Tensor, coefficients: list[float], n_rounds: int) -> Tensor:
    """Return the product of the factors of all rounds, from the squares x x^T of matrices x.

    A round multiplies x by a + b s + c s^2, where s is the square of x, which changes with it.
    """
    total, given = torch.empty_like(squares), torch.tensor(coefficients, device="cpu")
    n_threads = torch.get_num_threads()
    library.call("newton_schulz", *squares.shape[:2], n_rounds, n_threads, given, squares, total)
    return total


@total_factor.register_fake
def _(squares: Tensor, coefficients: list[float], n_rounds: int) -> Tensor:
    return torch.empty_like(squares)
