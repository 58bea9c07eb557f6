"""What every package uses of the system; nothing here knows questions, models or scores.

- files, run_folder: atomic files, links and locks; the layout of a run folder.
- processes, ranks: worker processes; the ranks of distributed training.
- signals, progress, memory, provenance: interruptions, progress bars, memory limits, versions.
"""
