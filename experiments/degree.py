"""The polynomial degree of each encoder layer's output as a function of its input (section 2.1).

    python experiments/degree.py

TP-attention multiplies a filler by a role, which are both linear in the layer's input, so the paper
says that layers can raise the degree of their representations in the input of the Transformer, and
plain attention cannot. That holds of a network in which only the binding is left as a
non-linearity. Here, in a model with initial weights:

- the feed-forward layers add nothing (their last map is zero);
- the attention weights stay as they are at the line's middle, since a softmax is no polynomial;
- every LayerNorm divides by the standard deviation that it has at the line's middle; it still
  subtracts the mean, which is linear.

All states of the embedding move along a line in a random direction. The degree is read from finite
differences over equally spaced points of the line: those of an order above the degree vanish, up to
rounding. What came out stands in docs/experiments.md.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import tp_transformer as tpt
from tp_transformer.model.transformer import Transformer

Floats = npt.NDArray[np.float64]

QUESTION = "What is (1/2)/(3/4)?"
N_LAYERS = 4  # float64 sees no more: a degree of 32 has differences below its rounding
HIGHEST = 2**N_LAYERS + 2  # order of the differences that are looked at
REACH = 10  # of the line, in standard deviations of the states: far out, high powers show
VANISHES = 1e-13  # of the values, for a difference divided by the sum of its coefficients
ATTENTION, SCALE = HELD = ("attention weights", "scale of LayerNorm")
ROLES = "roles"  # as a control: without them the binding is linear


class FixedScale(nn.Module):
    """A LayerNorm that divides by the standard deviations of the first state that it sees."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm
        self.scale: Tensor | None = None

    def forward(self, state: Tensor) -> Tensor:
        """Normalise (batch, position, d_model)."""
        centred = state - state.mean(dim=-1, keepdim=True)
        if self.scale is None:
            self.scale = (centred.square().mean(dim=-1, keepdim=True) + self.norm.eps).sqrt()
        return centred / self.scale * self.norm.weight + self.norm.bias


def prepared(preset: str, seed: int, held: Collection[str] = HELD) -> Transformer:
    """A model in float64 whose feed-forward layers add nothing, with or without fixed scales."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tpt.build(preset, n_layers=N_LAYERS).double().eval()
    for cell in model.encoder:
        nn.init.zeros_(cell.feed_forward.contract.weight)
        nn.init.zeros_(cell.feed_forward.contract.bias)
        if SCALE in held:
            for name in ("self_attention_norm", "feed_forward_norm", "output_norm"):
                setattr(cell, name, FixedScale(getattr(cell, name)))
    return model


@torch.no_grad()
def outputs(model: Transformer, seed: int, held: Collection[str] = HELD) -> list[Floats]:
    """What each layer hands on, (point, position * d_model), along a line of its input."""
    source = torch.from_numpy(model.vocabulary.encode([QUESTION]).padded(model.vocabulary.pad))
    names = {ATTENTION: "weights", ROLES: "role"}
    fixed = [
        f"encoder.{layer}.self_attention.{names[name]}"
        for name in held
        if name in names
        for layer in range(N_LAYERS)
    ]
    with model.trace("embedding", *fixed) as trace:
        model.encode(source)
    middle = {name: trace[name] for name in trace}
    generator = torch.Generator().manual_seed(seed)
    state = middle["embedding"]
    direction = (
        torch.randn(state.shape, generator=generator, dtype=state.dtype) * REACH * state.std()
    )
    times = torch.linspace(-1, 1, HIGHEST + 1, dtype=state.dtype)[:, None, None]
    edit = {"embedding": lambda states: states + times * direction}
    edit |= {name: lambda own, name=name: middle[name].expand_as(own) for name in fixed}
    states = [f"encoder.{layer}.output" for layer in range(N_LAYERS)]
    with model.trace(*states, edit=edit) as trace:
        model.encode(source.expand(len(times), -1))
    return [trace[name].flatten(1).numpy() for name in states]


def degree(values: Floats) -> int | None:
    """The degree of a polynomial, given its values (point, output) at equally spaced points.

    None where no order of differences is reached from which on all of them vanish.
    """
    largest = np.abs(values).max()
    # The coefficients of a difference of order k add up to 2^k in magnitude, and so does rounding.
    sizes = [
        np.abs(np.diff(values, n=order, axis=0)).max() / 2**order / largest
        for order in range(len(values))
    ]
    above = [order for order, size in enumerate(sizes) if size > VANISHES]
    return None if above[-1] == len(sizes) - 1 else above[-1]


def degrees(preset: str, seed: int, held: Collection[str] = HELD) -> list[int | None]:
    """The degree of each layer's output; None where it is no polynomial."""
    return [degree(values) for values in outputs(prepared(preset, seed, held), seed, held)]


def main() -> None:
    """Print the degrees, layer by layer, for three draws of weights and directions."""
    tp, plain = "tp-transformer-tiny", "transformer-tiny"
    cases = [(tp, (*HELD, ROLES))]
    cases += [(preset, held) for held in (HELD, HELD[:1], HELD[1:], ()) for preset in (tp, plain)]
    for preset, held in cases:
        found = [degrees(preset, seed, held) for seed in range(3)]
        print(f"{preset}, fixed: {', '.join(held) or 'nothing'}: {found}")


if __name__ == "__main__":
    main()
