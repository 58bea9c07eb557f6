"""Output for people. This package displays what earlier packages compute; they do not import it.

- table, findings, store, presets, roles, panel, heading: results, analyses, stores, models, role
  clusters and running trainings in a terminal.
- document, comparison, bench, model_card: tables as texts and as objects; cards of models.
- bars, curve: figures of accuracies and learning curves.
- report, explorer: HTML pages; policy, page_file: what these may do, and which files they replace.
"""
