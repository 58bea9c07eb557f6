"""The analyses of the paper, on any checkpoint."""
