"""The simplified network of section 6.2: the binding problem in its simplest form.

The network has two layers of single-head attention with residual connections and nothing else, and
its attention follows the structure. In (a/b)/(c/d) cell a attends to b and c to d, then e to a and
c; in (a/d)/(c/b), a attends to d and c to b. With standard attention, cell e ends in the same state
for any weights; with TP-attention it does not, unless the roles of a and c are equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.progress import track
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.result import Values

A, B, C, D, E = range(5)  # the cells of the network
# Pairs of a cell and the cell that it attends to, for (a/b)/(c/d) and (a/d)/(c/b).
STRUCTURES = (((A, B), (C, D)), ((A, D), (C, B)))
ATTENTIONS = {
    "standard": "standard attention",
    "tp": "TP-attention",
    "equal roles": "TP-attention, a and c with equal roles",
}
SIZES = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class SimplifiedNetwork:
    """The maps of two layers; those to values and outputs have no biases, as in the section."""

    values: Floats  # (layer, d_model, d_model)
    outputs: Floats  # (layer, d_model, d_model)
    role: Floats  # (d_model, d_model), of the first layer
    role_bias: Floats  # (d_model)

    @classmethod
    def random(cls, d_model: int, rng: np.random.Generator) -> "SimplifiedNetwork":
        """Initialise weights at random, such that the lengths of vectors change little."""
        maps = rng.standard_normal((5, d_model, d_model)) / np.sqrt(d_model)
        return cls(
            values=maps[:2],
            outputs=maps[2:4],
            role=maps[4],
            role_bias=rng.standard_normal(d_model),
        )

    def read(
        self, states: Floats, structure: Sequence[tuple[int, int]], attention: str
    ) -> tuple[Floats, Floats]:
        """Return the cell e before and after the second layer (equations 9 to 11).

        As in the section, only the first layer binds: in the second a single cell attends, and its
        role would be the same for both structures.
        """
        first, second = np.zeros((2, 5, 5))
        for subject, attended in structure:
            first[subject, attended] = 1
        second[E, [A, C]] = 0.5
        roles = np.ones_like(states)
        if attention != "standard":
            roles = states @ self.role.T + self.role_bias
        if attention == "equal roles":
            roles[C] = roles[A]
        states = states + (first @ states @ self.values[0].T * roles) @ self.outputs[0].T
        after = states + second @ states @ self.values[1].T @ self.outputs[1].T
        return states[E], after[E]


def confusion(network: SimplifiedNetwork, states: Floats, attention: str) -> float:
    """Return the distance of e between the two structures, relative to the update by attention."""
    (before, first), (_, second) = (
        network.read(states, structure, attention) for structure in STRUCTURES
    )
    return float(np.linalg.norm(first - second) / np.linalg.norm(first - before))


@dataclass(frozen=True, kw_only=True)
class Simplified:
    """The relative distance of the two structures: (size, draw) for each kind of attention."""

    sizes: tuple[int, ...]
    distances: Mapping[str, Floats]

    def values(self) -> Values:
        """Return the minimum, the median and the maximum distance for each size."""
        return {
            name: [
                {
                    "d_model": size,
                    "least": found.min(),
                    "median": np.median(found),
                    "greatest": found.max(),
                    "draws": len(found),
                }
                for size, found in zip(self.sizes, distances, strict=True)
            ]
            for name, distances in self.distances.items()
        }


def simplified(sizes: Sequence[int] = SIZES, *, draws: int = 50, seed: int = 0) -> Simplified:
    """Measure the distance of the two structures in many random networks of each size."""
    if draws < 1 or not sizes or min(sizes) < 1:
        raise SettingsError("simplified networks need sizes of at least 1 and at least 1 draw")
    rng = np.random.default_rng(seed)
    distances = {name: np.zeros((len(sizes), draws)) for name in ATTENTIONS}
    for row, size in enumerate(track("measuring simplified networks", sizes)):
        for column in range(draws):
            network = SimplifiedNetwork.random(size, rng)
            states = rng.standard_normal((5, size))
            for name, found in distances.items():
                found[row, column] = confusion(network, states, name)
    return Simplified(sizes=tuple(sizes), distances=distances)
