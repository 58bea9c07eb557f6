"""Code that all other packages use, independent of questions, models and scores.

- errors, ranges, settings, yaml_text: errors of users, ranges of numbers, configuration files.
- registry, extensions: objects by name, and modules from outside that add to them.
- atomic, run_folder: atomic files, folders of commands, the layout of a run folder.
- provenance: versions and commands, as results record them.
- interruptions, progress, allocator, parallel, distributed: signals, progress bars, memory,
  worker processes, ranks.
- statistics, permutation: intervals and tests, computed permutations.
- figures, html, frames: plotting style; tables and frames for notebooks.
"""
