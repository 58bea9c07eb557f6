"""Clusters of role vectors and the expression structure in them (section 5.1)."""
