"""Conversion of checkpoints of other projects: those of the authors of the paper."""
