"""Commands that combine several runs: the demo, training side by side, the reproduction."""
