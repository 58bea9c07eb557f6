"""How much of the tensor product the Hadamard product keeps (section 7)."""
