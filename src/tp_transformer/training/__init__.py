"""Training of a model in a run folder.

- run: a run is opened or created, and trained, with one seed or several; setup: what a run is, and
  its loop; config: its settings and limits.
- loop, gradient: the steps; micro-batches and their gradients.
- optim, muon: optimizers and schedules.
- validate: scores on held-out and monitored questions.
- checkpoint: writing, finding and restoring checkpoints; which of them are kept.
- record: what a run records and prints, and where else that goes; history: all runs that led to a
  model.
- plan: what a run would take, without starting it; launch: command lines for GPUs.
"""
