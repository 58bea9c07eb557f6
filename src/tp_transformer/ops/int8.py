"""Linear layers in int8, for inference on a CPU.

Each row of weights, and each row of inputs when it arrives, is rounded to whole numbers from -127
to 127 times a scale. Sums of their products are exact, so an output depends neither on the other
rows of a batch nor on the instructions of the processor. Biases, normalisations, attention and the
embedding, which also gives the logits, stay in float32.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tp_transformer.ops import library
from tp_transformer.ops.library import is_plain, runs_as_written

M = TypeVar("M", bound=nn.Module)

MOST = 127
# Of a packed map (int8.c): its start; by output, rounded up to a block, the scale, the bias and the
# sum; and by output and input, rounded up to a group, the weight.
HEADER, BLOCK, GROUP, PER_OUTPUT = 64, 16, 4, 12
MOST_INPUTS = 65_536  # of a map: the sum of more products might not fit into 32 bits
FASTEST = 0  # the instructions to use; 1 is AVX2


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows as whole numbers, and the scale of each row (…, 1).

    A row with NaN or infinity has such a scale; one of (almost) zeros becomes zeros.
    """
    largest = rows.abs().amax(dim=-1, keepdim=True)
    inverse = torch.full_like(largest, MOST) / largest  # `MOST / largest` would be rounded twice
    is_zero = inverse.isinf()
    integers = torch.round(rows * inverse.masked_fill(is_zero, 0))
    return integers, largest.masked_fill(is_zero, 0) / MOST


class Int8Linear(nn.Module):
    """A linear layer whose weights and inputs are rounded to int8."""

    scale: Tensor  # of each row of weights

    @torch.inference_mode(mode=False)  # tensors made for inference have no version
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        integers, scale = rounded(layer.weight.detach().float())
        self.weight = nn.Parameter(integers.to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale[:, 0])
        bias = None if layer.bias is None else layer.bias.detach().float()
        self.bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)
        self._packed: tuple[list[tuple[int, int]], Tensor] | None = None
        self.eval()

    def extra_repr(self) -> str:
        """Return the sizes, as of a linear layer."""
        return f"in_features={self.in_features}, out_features={self.out_features}, int8"

    @property
    def packed(self) -> Tensor:
        """The map as the C kernel reads it, packed again if the weights have changed."""
        tensors = [each for each in (self.weight, self.scale, self.bias) if each is not None]
        versions = [*zip(map(Tensor.data_ptr, tensors), map(_version, tensors), strict=True)]
        if self._packed is None or self._packed[0] != versions:
            self._packed = versions, self.pack()
        return self._packed[1]

    def pack(self, instructions: int = FASTEST) -> Tensor:
        """Return the map as the C kernel reads it."""
        n_out = -(-self.out_features // BLOCK) * BLOCK
        n_in = -(-self.in_features // GROUP) * GROUP
        packed = torch.empty(HEADER + n_out * (PER_OUTPUT + n_in), dtype=torch.uint8, device="cpu")
        sizes = self.in_features, self.out_features, instructions
        library.call("int8_pack", *sizes, self.weight, self.scale, self.bias, packed)
        return packed

    def forward(self, state: Tensor) -> Tensor:
        """Apply the map to the last axis."""
        if state.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("int8 has no gradients: train the model in float32 or bfloat16")
        if is_plain(state, torch.float32) and runs_as_written() and library.load() is not None:
            return int8_linear(state, self.packed, self.out_features)
        integers, scale = rounded(state)
        product = F.linear(integers, self.weight.to(integers.dtype)) * scale * self.scale
        return product if self.bias is None else product + self.bias


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place, for which torch has no public name."""
    return -1 if tensor.is_inference() else tensor._version  # the former are not counted


@torch.library.custom_op("tp_transformer::int8_linear", mutates_args=())
def int8_linear(state: Tensor, packed: Tensor, out_features: int) -> Tensor:
    """Apply a packed map to the last axis of states in float32."""
    rows = state.contiguous()
    output = rows.new_empty(*rows.shape[:-1], out_features)
    n_rows = rows.shape[:-1].numel()
    library.call("int8_linear", n_rows, torch.get_num_threads(), rows, packed, output)
    return output


@int8_linear.register_fake
def _(state: Tensor, packed: Tensor, out_features: int) -> Tensor:
    return state.new_empty(*state.shape[:-1], out_features)


def quantised(module: M) -> M:
    """Return a copy of a module for inference, with its linear layers in int8."""
    layers = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Linear and 0 < layer.in_features <= MOST_INPUTS
    ]
    # What a deep copy finds in its memo, it does not copy.
    copied = copy.deepcopy(module, {id(layer): Int8Linear(layer) for layer in layers})
    return copied.float().eval().requires_grad_(False)


def is_quantised(module: nn.Module) -> bool:
    """Whether a module has a linear layer in int8."""
    return any(isinstance(layer, Int8Linear) for layer in module.modules())
