"""Questions and answers: their symbols, their files, their batches."""

# Bound here and at once: importing the file `generate.py` later would put the module of that
# name in the place of the function.
from tp_transformer.data.generate import generate as generate
