"""Commands that combine several runs: the demo, and training side by side."""
