"""Output for people: tables, documents, charts, the live panel of a run, the report, the explorer.

This package displays what earlier packages compute; they do not import it.
"""
