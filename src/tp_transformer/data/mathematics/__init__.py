"""The Mathematics Dataset (Saxton et al., 2019) as a task.

- `modules`, `task`: its modules and splits
- `corpus`: the published files, read into a store
- `produce`: questions by address, and whole stores
- `deepmind`, `fast`, `exact`: DeepMind's generator, and faster replacements of its slowest parts
"""
