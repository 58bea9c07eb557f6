"""Training: the optimizer, the loop, checkpoints, the run folder."""
