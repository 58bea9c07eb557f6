"""Training of a model in a run folder.

- run: starting and resuming a run; config: its settings; claim: its folder; setup: its loop.
- seeds: runs that differ only in the seed; plan: what a run would take, without starting it;
  launch: command lines for several GPUs and machines.
- limits: when a run ends, and the time that is left.
- loop, gradient, local_batch: the steps; micro-batches and their gradients.
- optim, muon: optimizers and schedules.
- validate: scores on held-out and monitored questions.
- checkpoint: writing, finding and restoring checkpoints; history: all runs that led to a model.
- metrics, records, loggers, display: what a run records and prints, and where else that goes.
- signals: how signals stop a run.
"""
