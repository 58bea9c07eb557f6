"""How the rows of a batch lie in a tensor, and what follows from that.

`Padded` puts rows side by side and fills them up on the right; `Packed` puts them end to end, so
that nothing is computed for padding. A layout owns the positions of its tokens, says which
positions may attend to which (a `Pattern`), and computes attention accordingly. Every other part
of a model transforms each position by itself and is the same in both layouts.
"""
