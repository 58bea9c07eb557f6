"""The verbs of `tpt`, each with its arguments; torch is imported only when a verb runs."""
