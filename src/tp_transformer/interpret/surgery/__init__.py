"""Role vectors removed or replaced, and the effect on the answers."""
