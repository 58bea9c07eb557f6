"""Output for people. This package displays what earlier packages compute; they do not import it.

- terminal, comparison, store, roles, panel: results, findings, comparisons, stores, role clusters
  and running trainings in a terminal; comparisons also as documents.
- charts: figures of accuracies and learning curves. cards: model cards and the list of models.
- page, sections, markup, inputs: the report. explorer: the page in which a model runs.
"""
