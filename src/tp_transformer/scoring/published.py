"""The numbers printed in the papers, each with its source.

Schlag et al. 2020: "Enhancing the Transformer With Explicit Relational Encoding for Math Problem
Solving", https://arxiv.org/abs/1910.06611. Its Table 1 repeats the first two rows from Saxton et
al. 2019: "Analysing Mathematical Reasoning Abilities of Neural Models",
https://arxiv.org/abs/1904.01557. Accuracies are fractions of questions answered exactly, averaged
over modules; `None` is a dash in the paper.
"""

from dataclasses import dataclass

SOURCE = "Schlag et al. 2020"
INTERPOLATION_AFTER_2M_STEPS = 0.8424  # of the TP-Transformer: "preliminary experiments", section 4

# Section 6.1: the mean squared error, averaged over heads, with which an affine map reconstructs
# the hidden state from the value vector of one head, by the preset of the model.
RECONSTRUCTION_ERROR = {"tp-transformer": 0.017, "transformer": 0.009}


@dataclass(frozen=True, kw_only=True)
class Table1Row:
    """One row of Schlag et al.'s Table 1, as printed."""

    name: str
    weights: str
    steps: int
    train: float | None
    interpolation: float
    interpolation_above_95: int
    extrapolation: float
    extrapolation_above_95: int


TABLE_1: dict[str, Table1Row] = {
    "lstm-saxton": Table1Row(
        name="LSTM with thinking steps (Saxton et al.)",
        weights="18M",
        steps=500_000,
        train=None,
        interpolation=0.57,
        interpolation_above_95=6,
        extrapolation=0.41,
        extrapolation_above_95=1,
    ),
    "transformer-saxton": Table1Row(
        name="Transformer (Saxton et al.)",
        weights="30M",
        steps=500_000,
        train=None,
        interpolation=0.76,
        interpolation_above_95=13,
        extrapolation=0.50,
        extrapolation_above_95=1,
    ),
    "transformer": Table1Row(
        name="Transformer",
        weights="44.2M",
        steps=1_000_000,
        train=0.8660,
        interpolation=0.7954,
        interpolation_above_95=16,
        extrapolation=0.5328,
        extrapolation_above_95=2,
    ),
    "tp-transformer": Table1Row(
        name="TP-Transformer",
        weights="49.1M",
        steps=1_000_000,
        train=0.8901,
        interpolation=0.8192,
        interpolation_above_95=18,
        extrapolation=0.5467,
        extrapolation_above_95=3,
    ),
    "tp-transformer-b": Table1Row(
        name="TP-Transformer B",
        weights="43.0M",
        steps=1_000_000,
        train=0.8753,
        interpolation=0.8052,
        interpolation_above_95=16,
        extrapolation=0.5204,
        extrapolation_above_95=1,
    ),
    "tp-transformer-c": Table1Row(
        name="TP-Transformer C",
        weights="30.0M",
        steps=1_000_000,
        train=0.8633,
        interpolation=0.7902,
        interpolation_above_95=14,
        extrapolation=0.5471,
        extrapolation_above_95=1,
    ),
}
"""Table 1, in the paper's order, by the name of our preset for that row."""
