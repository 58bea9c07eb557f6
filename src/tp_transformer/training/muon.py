"""Muon for matrices, Adam for everything else, in one optimizer.

Muon (Jordan et al. 2024) averages the gradient of a matrix and takes a step along the nearest
orthogonal matrix of that average, so that the step has the same length in all directions. A
parameter that fuses several maps, such as query, key, value and role of all heads, contains several
matrices, which are orthogonalised separately. Matrices of one shape are computed in one batch, in
float32: torch.optim.Muon (torch 2.9) casts to bfloat16, which most CPUs emulate, and lacks blocks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from tp_transformer.model.attention import Attention
from tp_transformer.ops.functions import can_iterate, total_factor

Blocks = tuple[int, int]  # number of matrices along the rows and along the columns

# Each round maps every singular value s to a s + b s^3 + c s^5. Five rounds bring those that are at
# least 1/300 of the matrix's norm to between 0.68 and 1.21 (Jordan et al. 2024).
A, B, C = 3.4445, -4.7750, 2.0315
ROUNDS = 5
# A matrix whose norm is far below this stays small: its gradient is rounding error.
EPS = 1e-7
MOMENTUM = 0.95
# The root mean square of the elements of a step, about that of Adam's (Liu et al. 2025, "Muon is
# scalable for LLM training"), so that both rules can have about the same learning rate.
ELEMENT_SIZE = 0.2


def orthogonalise(matrices: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrix of each of `matrices`, in their dtype.

    Singular vectors are unchanged, and singular values become about 1 (Newton-Schulz iterations,
    which only need products). `matrices` is (matrix, row, column).
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    n_rows, n_columns = x.shape[1:]
    if n_columns > 2 * n_rows:
        square = x @ x.mT
        norm = square.diagonal(dim1=1, dim2=2).sum(dim=1).sqrt()[:, None, None] + EPS
        total = _total_factor(square / norm**2) / norm  # no singular value above 1
        return matrices @ total if is_tall else total @ matrices  # it is symmetric
    x = _iterate(x / (x.norm(dim=(1, 2), keepdim=True) + EPS))
    return x.mT if is_tall else x


def _iterate(x: Tensor) -> Tensor:
    """Apply all rounds, each with a product of the size of `x`."""
    for _ in range(ROUNDS):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=B, alpha=C)
        x = torch.baddbmm(x, factor, x, beta=A)
    return x


def _total_factor(square: Tensor) -> Tensor:
    """Return the product of the factors by which all rounds multiply x, from the square x x^T.

    A round multiplies x from the left by a polynomial of its square, a symmetric matrix that
    commutes with the square; so the next square is factor * square * factor.
    """
    if can_iterate(square):
        total: Tensor = total_factor(square, [A, B, C], ROUNDS)
        return total
    factor = total = _factor(square)
    for _ in range(ROUNDS - 1):
        square = factor @ square @ factor
        factor = _factor(square)
        total = factor @ total
    return total


def _factor(square: Tensor) -> Tensor:
    """Return the factor by which a round multiplies a matrix, from the square of the matrix."""
    factor = torch.baddbmm(square, square, square, beta=B, alpha=C)
    factor.diagonal(dim1=1, dim2=2).add_(A)
    return factor


class Muon(torch.optim.Optimizer):
    """Muon for groups with `blocks`, AdamW for groups without.

    `blocks` is the number of matrices into which the rows and the columns of each parameter of the
    group are divided: (4, 1) for a map that fuses query, key, value and role. Weight decay is
    decoupled from the gradient in both kinds of groups. The state of a parameter is `momentum`, or
    `exp_avg`, `exp_avg_sq` and `step`: only tensors, as checkpoints require.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "fused": fused, "weight_decay": 0.0}
        super().__init__(groups, {**defaults, "blocks": None})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, unless a parameter does not divide into its blocks."""
        members = param_group["params"]
        parameters = [members] if isinstance(members, Tensor) else list(members)
        n_rows, n_columns = param_group.get("blocks") or (1, 1)
        for parameter in parameters if param_group.get("blocks") else ():
            shape = tuple(parameter.shape)
            if len(shape) != 2 or shape[0] % n_rows or shape[1] % n_columns:
                raise ValueError(f"{shape} does not divide into {n_rows} by {n_columns} matrices")
        super().add_param_group({**param_group, "params": parameters})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        by_shape: dict[Any, list[tuple[Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["blocks"] is None:
                self._adam(parameters, group)
                continue
            for parameter in parameters:
                shape = _divided(parameter, group["blocks"]).shape[2:]
                key = (shape, parameter.dtype, parameter.device)
                by_shape.setdefault(key, []).append((parameter, group))
        for members in by_shape.values():
            self._update(members)
        return loss

    def _update(self, members: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Update parameters whose blocks have one shape."""
        averages = [self._average(parameter, group["blocks"]) for parameter, group in members]
        directions = orthogonalise(torch.cat([average.flatten(0, 1) for average in averages]))
        size = ELEMENT_SIZE * max(directions.shape[1:]) ** 0.5
        n_blocks = [average.shape[:2].numel() for average in averages]
        by_parameter = torch.split(directions, n_blocks)
        for (parameter, group), average, direction in zip(
            members, averages, by_parameter, strict=True
        ):
            if group["weight_decay"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            blocks = direction.view(average.shape).to(parameter.dtype)
            _divided(parameter, group["blocks"]).add_(blocks, alpha=-group["lr"] * size)

    def _average(self, parameter: Tensor, blocks: Blocks) -> Tensor:
        """Update the momentum and return the blocks of its Nesterov average with the gradient."""
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101, for the type checker
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        average = gradient.lerp(state["momentum"], MOMENTUM)
        return _divided(average.to(torch.promote_types(average.dtype, torch.float32)), blocks)

    def _adam(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device if group["fused"] else None)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _divided(matrix: Tensor, blocks: Blocks) -> Tensor:
    """Return a view of a matrix as blocks: (block row, block column, row, column)."""
    (n_rows, n_columns), (height, width) = blocks, matrix.shape
    return matrix.view(n_rows, height // n_rows, n_columns, width // n_columns).transpose(1, 2)


def matrix_blocks(model: nn.Module) -> dict[Tensor, Blocks]:
    """Return the weights of the linear layers of a model, and their numbers of matrices.

    The maps of an attention are divided into one matrix per head (and, if query, key, value and
    role are fused, per map). Their small squares cost less than those of whole maps: an update of
    tp-transformer-small takes about half the time.
    """
    layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    blocks: dict[Tensor, Blocks] = {layer.weight: (1, 1) for layer in layers}
    for attention in model.modules():
        if not isinstance(attention, Attention):
            continue
        blocks[attention.out_proj.weight] = (1, attention.n_heads)
        for layer in attention.children():
            if isinstance(layer, nn.Linear) and layer is not attention.out_proj:
                binding = attention.binding
                size = binding.d_role if layer is attention.role_proj else binding.d_head
                n_maps, rest = divmod(layer.out_features, size)
                blocks[layer.weight] = (1, 1) if rest else (n_maps, 1)
    return blocks
