"""Commands that combine several runs: the demo, training side by side, and the binding bench."""
