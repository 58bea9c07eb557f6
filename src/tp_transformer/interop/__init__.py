"""Models from elsewhere as ours, and ours for elsewhere."""
