"""Attention maps, and the heads that follow a relation (section 5.2)."""
