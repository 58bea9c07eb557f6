"""The polynomial degree of the output of each encoder layer in its input (section 2.1).

    python experiments/degree.py

TP-attention multiplies a filler by a role, both of which are linear in the input of the layer.
According to the paper, layers can therefore raise the degree of their representations in the input
of the Transformer, and plain attention cannot. This holds for a network in which the binding is the
only non-linearity. Here, in a model with initial weights:

- the feed-forward layers add nothing (their last map is zero);
- the attention weights are fixed at the middle of the line, because a softmax is not a polynomial;
- each LayerNorm divides by its standard deviation at the middle of the line; it still subtracts the
  mean, which is linear.

All states of the embedding move along a line in a random direction. The degree is computed from
finite differences over equally spaced points of the line: those of an order above the degree
vanish, up to rounding. The results are in docs/experiments.md.
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
N_LAYERS = 4  # the maximum in float64: the differences for a degree of 32 are below rounding errors
HIGHEST = 2**N_LAYERS + 2  # largest order of differences
REACH = 10  # of the line, in standard deviations of the states; high powers need large values
VANISHES = 1e-13  # relative to the values, for a difference divided by the sum of its coefficients
ATTENTION, SCALE = HELD = ("attention weights", "scale of LayerNorm")
ROLES = "roles"  # a control: with fixed roles, the binding is linear


class FixedScale(nn.Module):
    """A LayerNorm that divides by the standard deviations of its first input."""

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
    """Return a model in float64 without feed-forward layers, with or without fixed scales."""
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
    """Return the output of each layer, (point, position * d_model), along a line of its input."""
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
    """Return the degree of a polynomial from its values (point, output) at equally spaced points.

    None if there is no order from which on all differences vanish.
    """
    largest = np.abs(values).max()
    # The absolute coefficients of a difference of order k sum to 2^k, and so do rounding errors.
    sizes = [
        np.abs(np.diff(values, n=order, axis=0)).max() / 2**order / largest
        for order in range(len(values))
    ]
    above = [order for order, size in enumerate(sizes) if size > VANISHES]
    return None if above[-1] == len(sizes) - 1 else above[-1]


def degrees(preset: str, seed: int, held: Collection[str] = HELD) -> list[int | None]:
    """Return the degree of the output of each layer; None if it is not a polynomial."""
    return [degree(values) for values in outputs(prepared(preset, seed, held), seed, held)]


def main() -> None:
    """Print the degrees by layer, for three random draws of weights and directions."""
    tp, plain = "tp-transformer-tiny", "transformer-tiny"
    cases = [(tp, (*HELD, ROLES))]
    cases += [(preset, held) for held in (HELD, HELD[:1], HELD[1:], ()) for preset in (tp, plain)]
    for preset, held in cases:
        found = [degrees(preset, seed, held) for seed in range(3)]
        print(f"{preset}, fixed: {', '.join(held) or 'nothing'}: {found}")


if __name__ == "__main__":
    main()
