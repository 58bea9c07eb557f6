"""Commands that combine several runs: demos, the bench, the reproduction, bundled models."""
