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


@dataclass(frozen=True)
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
        "LSTM with thinking steps (Saxton et al.)", "18M", 500_000, None, 0.57, 6, 0.41, 1
    ),
    "transformer-saxton": Table1Row(
        "Transformer (Saxton et al.)", "30M", 500_000, None, 0.76, 13, 0.50, 1
    ),
    "transformer": Table1Row("Transformer", "44.2M", 1_000_000, 0.8660, 0.7954, 16, 0.5328, 2),
    "tp-transformer": Table1Row(
        "TP-Transformer", "49.1M", 1_000_000, 0.8901, 0.8192, 18, 0.5467, 3
    ),
    "tp-transformer-b": Table1Row(
        "TP-Transformer B", "43.0M", 1_000_000, 0.8753, 0.8052, 16, 0.5204, 1
    ),
    "tp-transformer-c": Table1Row(
        "TP-Transformer C", "30.0M", 1_000_000, 0.8633, 0.7902, 14, 0.5471, 1
    ),
}
"""Table 1, in the paper's order, by the name of our preset for that row."""
