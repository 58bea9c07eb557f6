"""Output for people. This package displays what earlier packages compute; they do not import it.

- table: a table with renderers for terminals, Markdown, LaTeX and HTML.
- results, comparison, findings, store, presets, roles, panel: results, comparisons, analyses,
  stores, models, role clusters and running trainings; model_card, hub_card: cards of models.
- bars, curve: figures of accuracies and learning curves.
- report, explorer: HTML pages; page_file: what these may do, and which files they replace.
"""
