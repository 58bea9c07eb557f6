"""The Mathematics Dataset (Saxton et al., 2019) as one task: read as published, or generated."""
