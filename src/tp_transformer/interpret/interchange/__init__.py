"""Roles of two numbers exchanged: whether the answer follows them."""
