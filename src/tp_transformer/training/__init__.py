"""Training of a model in a run folder.

- run: starting and resuming a run; config: its settings; claim: its folder; setup: its loop.
- loop, gradient, local_batch, optim: the steps; micro-batches and their gradients; optimizers.
- validate: scores on held-out and monitored questions.
- checkpoint: writing, finding and restoring checkpoints.
- metrics, records, display, signals: what a run records and prints, and how signals stop it.
"""
