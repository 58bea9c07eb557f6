"""The layouts of a batch: how its rows are arranged in a tensor.

`Padded` places rows side by side and pads them on the right; `Packed` concatenates them, so that
nothing is computed for padding. A layout owns the positions of its tokens, determines which
positions may attend to which (a `Pattern`), and computes attention accordingly. All other parts of
a model transform each position separately and are the same for both layouts.
"""
