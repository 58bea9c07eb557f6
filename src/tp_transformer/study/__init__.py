"""Several runs with one purpose: the demo, and runs that train side by side."""
