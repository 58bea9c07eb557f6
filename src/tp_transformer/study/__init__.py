"""Commands that combine several runs: demos, the bench of bindings, bundled models."""
