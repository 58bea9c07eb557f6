"""Output for people: tables, documents, bar charts, learning curves, the live panel of a run.

This package displays what earlier packages compute; they do not import it.
"""
