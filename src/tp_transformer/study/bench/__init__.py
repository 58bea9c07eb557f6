"""The binding bench: bindings trained on the same samples at one budget, and compared."""
