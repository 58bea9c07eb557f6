"""What every other package builds on: errors, settings, files, statistics, processes.

Nothing here knows of questions, models or scores.

- errors, ranges, settings, registry: what users may choose, and the one line they get if they may
  not.
- atomic, run_folder, provenance: files that appear whole or not at all, the layout of a run folder,
  the versions and hashes that every file of results records.
- interruptions, progress, allocator, parallel, distributed: signals, progress bars, memory,
  workers, ranks.
- statistics, permutation, figures: intervals and tests, a computed random order, one plotting
  style.
"""
