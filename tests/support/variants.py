"""Bindings as parameters of tests that are slow."""

import pytest

from tp_transformer.model.binding import BINDINGS

# They differ from `hadamard` in one elementwise function, which the tests of bindings, attention
# and whole models cover. Searches and training need not be repeated for each in every run.
ELEMENTWISE = {"residual", "sigmoid", "silu"}
DISTINCT = [
    pytest.param(name, marks=pytest.mark.slow) if name in ELEMENTWISE else name for name in BINDINGS
]
