"""What a person looks at: tables, documents, bars, curves and the live panel of a run.

Everything here reads what the packages below computed, and nothing below imports it.
"""
