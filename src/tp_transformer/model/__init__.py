"""The models: attention, bindings, layers, and what is built of them."""
