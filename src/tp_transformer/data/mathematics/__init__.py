"""The Mathematics Dataset (Saxton et al., 2019) as a task: published files, and a generator."""
