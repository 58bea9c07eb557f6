"""How good a model is, how sure that is, and in what it goes wrong."""
